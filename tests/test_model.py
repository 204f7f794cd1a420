"""The model, above all that it cannot see the future; and its checkpoints."""

import math

import pytest
import torch
import torch.nn.functional as F

import utils.model
from utils.checkpoints import load_model
from utils.data import IGNORE
from utils.model import TransformerLM


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads are slower on tensors so small, and far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(vocab_size: int = 10, **sizes) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(vocab_size, **{"dim": 32, "n_heads": 4, "n_layers": 2, "max_len": 16} | sizes)


@pytest.fixture
def sees_the_future(monkeypatch):
    """Calling it takes the causal mask away: the mistake that the tests below must find."""
    causal = utils.model.scaled_dot_product_attention

    def without_mask(*args, is_causal, **kwargs):
        return causal(*args, **kwargs)

    return lambda: monkeypatch.setattr(utils.model, "scaled_dot_product_attention", without_mask)


# Causality, first proof: a later token changes no earlier output.


def first_change(model: TransformerLM, changed: int) -> int:
    """The first position whose logits change with the token at `changed`."""
    x = torch.randint(10, (1, 16))
    other = x.clone()
    other[0, changed] = (x[0, changed] + 1) % 10
    with torch.no_grad():
        differs = (model(x) - model(other)).abs().amax(dim=(0, 2)) > 1e-6
    return int(differs.nonzero()[0])


@pytest.mark.parametrize("changed", [0, 1, 9, 15])
def test_a_later_token_changes_no_earlier_output(changed):
    assert first_change(small(), changed) == changed


def test_and_that_would_notice_a_model_without_a_mask(sees_the_future):
    model = small()
    sees_the_future()
    assert first_change(model, 9) == 0


# Second proof: nobody can predict independent uniform tokens, so no loss is below ln V.


def loss_on_noise(model: TransformerLM, V: int) -> tuple[float, float]:
    """Train on tokens drawn independently. Returns the loss on new ones and its standard error."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(V, (n, 9), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    for _ in range(100):
        optimizer.zero_grad()
        model(*draw(64)).backward()
        optimizer.step()
    x, y = draw(512)
    with torch.no_grad():
        losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
    return losses.mean().item(), losses.std().item() / len(losses) ** 0.5


def test_no_loss_below_the_entropy():
    loss, error = loss_on_noise(small(n_layers=1), V=10)
    assert loss > math.log(10) - 4 * error
    assert loss < math.log(10) + 0.1, "it did learn that all are equally likely"


def test_and_a_model_without_a_mask_does_get_below(sees_the_future):
    sees_the_future()
    loss, _ = loss_on_noise(small(n_layers=1), V=10)
    assert loss < math.log(10) - 1


# The rest of its contract


def test_loss_is_the_mean_over_the_targets_that_count():
    model, x, y = small(), torch.randint(10, (3, 7)), torch.randint(10, (3, 7))
    y[0, 2:] = IGNORE
    picked = model(x).log_softmax(-1).gather(-1, y.clamp(min=0)[..., None])[..., 0]
    loss = model(x, y)
    assert loss.shape == () and loss.dtype == torch.float32
    torch.testing.assert_close(loss, -picked[y != IGNORE].mean())


def test_no_target_no_loss():
    loss = small()(torch.zeros(1, 4, dtype=torch.int64), torch.full((1, 4), IGNORE))
    loss.backward()
    assert loss.item() == 0.0


def test_first_loss_is_that_of_a_guess():
    x = torch.randint(1000, (8, 16))
    assert abs(small(1000)(x, x).item() - math.log(1000)) < 0.1


def test_first_weights_depend_on_the_seed_alone():
    first, second = small().state_dict(), small().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.manual_seed(1)
    assert not torch.equal(TransformerLM(10, 32).head.weight, small().head.weight)


def test_no_buffers_no_bias_and_no_tied_head():
    model = small(dropout=0.1)
    assert not list(model.buffers())
    assert all(m.bias is None for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert model.head.weight is not model.token_embedding.weight


def test_dropout_is_for_training_only():
    model, x = small(dropout=0.5), torch.randint(10, (1, 8))
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="32 is not divisible by 5 heads"):
        small(n_heads=5)
    with pytest.raises(ValueError, match="17 tokens.*at most 16"):
        small()(torch.zeros(1, 17, dtype=torch.int64))


# What the lessons on long sequences and on experts exchange


def test_positions_are_those_of_the_sequence_unless_said_otherwise():
    model, x, y = small(), torch.randint(10, (2, 8)), torch.randint(10, (2, 8))
    in_order = torch.arange(8)
    assert torch.equal(model(x), model(x, positions=in_order))
    assert torch.equal(model(x, y), model(x, y, in_order.expand(2, 8)))
    later = model(x, positions=in_order + 8)
    assert not torch.allclose(later, model(x))
    of_each = torch.stack([in_order, in_order + 8])
    torch.testing.assert_close(model(x, positions=of_each), torch.stack([model(x)[0], later[1]]))


def test_another_attention_and_another_mlp_take_the_places_of_the_models_own():
    model, x = small(n_layers=1), torch.randint(10, (2, 8))
    before = model(x)
    (block,) = model.blocks
    given = []

    def attend(q_BHTK, k_BHTK, v_BHTK):
        given.append([tuple(tensor.shape) for tensor in (q_BHTK, k_BHTK, v_BHTK)])
        return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)

    block.attention.attend = attend
    assert torch.equal(model(x), before)
    assert given == [[(2, 4, 8, 8)] * 3]
    block.attention.attend = lambda q_BHTK, k_BHTK, v_BHTK: torch.zeros_like(v_BHTK)
    block.mlp = torch.nn.Identity()
    h = model.token_embedding(x) + model.position_embedding(torch.arange(8))
    torch.testing.assert_close(model(x), model.head(model.norm(h + block.mlp_norm(h))))


# Checkpoints


def test_a_checkpoint_gives_the_model_back(tmp_path):
    model, x = small(), torch.randint(10, (2, 8))
    torch.save({"model": model.state_dict(), "config": model.config, "epoch": 1}, tmp_path / "model.pt")
    loaded = load_model(tmp_path / "model.pt")
    assert loaded.config == model.config
    assert torch.equal(loaded(x), model(x))


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path, model = tmp_path / "model.pt", small()
    wrapped = {f"module.{name}": weight for name, weight in model.state_dict().items()}
    for saved, message in [
        ({"model": wrapped, "config": model.config}, "DDP wrapper"),
        (model.state_dict(), 'needs the keys "model" and "config"'),
        (torch.zeros(2), 'needs the keys "model" and "config"'),
        (model, "plain tensors only"),
        ({"model": small(11).state_dict(), "config": model.config}, "do not fit"),
        ({"model": model.state_dict(), "config": model.config | {"n_experts": 4, "top_k": 2}}, "a mixture of experts"),
    ]:
        torch.save(saved, path)
        with pytest.raises(ValueError, match=message):
            load_model(path)
    for text in ("no checkpoint", "text"):  # torch raises different errors
        path.write_text(text)
        with pytest.raises(ValueError, match="plain tensors only"):
            load_model(path)
    with pytest.raises(ValueError, match="plain tensors only"):
        load_model(tmp_path)  # a folder, as distributed checkpoints are
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "nothing.pt")
