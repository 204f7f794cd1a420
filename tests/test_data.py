"""Corpora, windows and samplers."""

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch
from torch.utils.data import DistributedSampler

from utils import wikitext2
from utils.data import IGNORE, DataError, EpochOrder, ShardSampler, Windows, load_corpus, wikitext2_is_cached

REAL = Path(os.environ.get("WIKITEXT2", Path(__file__).parents[2] / "shared" / "wikitext-2"))

TINY = {"train": " = Title = \n\nthe cat sat\nthe <unk> ran\n", "validation": "the dog sat", "test": "the cat\nsat\n"}


def write(folder: Path, texts: dict[str, str]) -> str:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return str(folder)


def words(corpus, split: str) -> list[str]:
    return [corpus.vocab[i] for i in getattr(corpus, split).tolist()]


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    """An empty cache. Returns where it is."""
    for name in ("HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


# Corpora


def test_every_word_of_every_line_is_kept(tmp_path):
    corpus = load_corpus(write(tmp_path, TINY))
    assert words(corpus, "train") == "= Title = <eos> <eos> the cat sat <eos> the <unk> ran <eos>".split()
    assert words(corpus, "test") == "the cat <eos> sat <eos>".split()
    assert corpus.vocab == ["=", "Title", "<eos>", "the", "cat", "sat", "<unk>", "ran"]
    assert corpus.vocab[corpus.eos] == "<eos>"
    assert {corpus.train.dtype, corpus.validation.dtype, corpus.test.dtype} == {torch.int64}


def test_words_that_train_lacks_are_unknown(tmp_path):
    assert words(load_corpus(write(tmp_path, TINY)), "validation") == "the <unk> sat <eos>".split()


def test_unk_joins_the_vocabulary_only_where_it_is_needed(tmp_path):
    texts = {"train": "a b\n", "validation": "a\n", "test": "b\n"}
    assert load_corpus(write(tmp_path, texts)).vocab == ["a", "b", "<eos>"]
    corpus = load_corpus(write(tmp_path, texts | {"test": "c\n"}))
    assert corpus.vocab == ["a", "b", "<eos>", "<unk>"]
    assert words(corpus, "test") == ["<unk>", "<eos>"]


def test_parquet_and_the_name_valid(tmp_path):
    import pyarrow
    import pyarrow.parquet

    text, table = tmp_path / "text", tmp_path / "table"
    text.mkdir(), table.mkdir()
    expected = load_corpus(write(text, TINY))
    for name, split in {"train": "train", "valid": "validation", "test-00000-of-00001": "test"}.items():
        rows = pyarrow.table({"text": TINY[split].removesuffix("\n").split("\n")})
        pyarrow.parquet.write_table(rows, table / f"{name}.parquet")
    corpus = load_corpus(str(table))
    assert corpus.vocab == expected.vocab
    for split in ("train", "validation", "test"):
        assert torch.equal(getattr(corpus, split), getattr(expected, split))


def test_builtin_is_english_and_the_same_each_time():
    first, second = load_corpus("builtin"), load_corpus("builtin")
    assert first.vocab == second.vocab and torch.equal(first.train, second.train)
    assert len(first.train) > 40_000 and len(first.validation) > 5_000 and len(first.test) > 5_000
    assert {"the", "class", "<unk>"} <= set(first.vocab)


def test_random_is_uniform_and_independent():
    corpus = load_corpus("random")
    V = len(corpus.vocab)
    assert V == 50 and torch.equal(corpus.train, load_corpus("random").train)
    counts = torch.bincount(corpus.train, minlength=V).double()
    expected = len(corpus.train) / V
    # Chi-squared with 49 degrees of freedom, mean 49, standard deviation 9.9.
    assert ((counts - expected) ** 2 / expected).sum() < 49 + 5 * 9.9
    # A pair of neighbours is as likely as any other: equal neighbours are one in V.
    equal = (corpus.train[1:] == corpus.train[:-1]).double().mean()
    assert abs(equal - 1 / V) < 5 * (1 / V / len(corpus.train)) ** 0.5


@pytest.mark.skipif(not REAL.is_dir(), reason="needs WikiText-2: set WIKITEXT2 to a folder with its three .txt")
def test_published_counts_of_wikitext2():
    corpus = load_corpus(str(REAL))
    assert [len(corpus.train), len(corpus.validation), len(corpus.test)] == [2_088_628, 217_646, 245_569]
    assert len(corpus.vocab) == 33_278


# WikiText-2 from the cache of `datasets`, and without it


def test_what_datasets_has_cached_is_read_without_it(tmp_path, no_cache, monkeypatch):
    from datasets.arrow_writer import ArrowWriter

    folder = no_cache / "Salesforce___wikitext" / "wikitext-2-v1" / "0.0.0" / "b08601e"
    half = folder.with_name("b08601e.incomplete")
    half.mkdir(parents=True)
    for split, text in TINY.items():
        with ArrowWriter(path=str(half / f"wikitext-{split}.arrow")) as writer:
            for row in text.removesuffix("\n").split("\n"):
                writer.write({"text": row})
            writer.finalize()
    assert not wikitext2_is_cached(), "a download that was cut off is no data set"
    half.rename(folder)
    assert wikitext2_is_cached()

    monkeypatch.setattr(wikitext2, "_hub_answers", lambda seconds: pytest.fail("asked the hub"))
    corpus, expected = load_corpus(None), load_corpus(write(tmp_path, TINY))
    assert corpus.name == "wikitext-2"
    assert corpus.vocab == expected.vocab and torch.equal(corpus.train, expected.train)


def test_without_cache_and_network_wikitext2_says_what_to_do(no_cache, monkeypatch):
    # Nothing listens on port 9 of this machine, and no download may be tried.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(wikitext2, "download_wikitext2", lambda: pytest.fail("tried to download"))
    with pytest.raises(DataError, match=r"`./workbook data` once on a login node.*builtin.*random") as caught:
        load_corpus("wikitext-2")
    assert "\n" not in str(caught.value)


def test_a_download_without_network_asks_twice_and_says_what_to_do(no_cache, monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(wikitext2, "_hub_answers", lambda seconds: bool(asked.append(seconds)))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: pytest.fail("tried for half a minute"))
    with pytest.raises(
        DataError, match=r"does not answer; run `./workbook data` where .* login node.*builtin"
    ) as caught:
        wikitext2.download_wikitext2()
    assert len(asked) == 2 and "\n" not in str(caught.value)


def test_a_look_up_that_never_ends_is_left_behind(monkeypatch):
    end_of_test = threading.Event()

    def look_up(*args, **kwargs):
        end_of_test.wait()
        raise OSError("no such name")

    monkeypatch.setattr(wikitext2, "urlopen", look_up)
    assert not wikitext2._hub_answers(seconds=0.05)
    end_of_test.set()


def test_a_hub_that_answers_is_asked_to_download(no_cache, monkeypatch):
    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked = []
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(wikitext2, "download_wikitext2", lambda: asked.append(True))
    with pytest.raises(DataError, match="was downloaded but is not in"):
        load_corpus("wikitext-2")
    server.shutdown()
    assert asked == [True]


def test_none_needs_no_network(no_cache, monkeypatch):
    monkeypatch.setattr(wikitext2, "urlopen", lambda *args, **kwargs: pytest.fail("asked the network"))
    assert load_corpus(None).name == "builtin"


def test_bad_folders_are_explained(tmp_path):
    def message(name: str) -> str:
        with pytest.raises(DataError) as caught:
            load_corpus(name)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such folder" in message(str(tmp_path / "nothing"))
    assert "no train.txt" in message(str(tmp_path))
    write(tmp_path, TINY | {"test": ""})
    assert "test is empty" in message(str(tmp_path))
    (tmp_path / "test.txt").write_bytes(b"caf\xe9\n")
    assert "not UTF-8" in message(str(tmp_path))
    (tmp_path / "test.txt").unlink()
    (tmp_path / "test.parquet").write_bytes(b"no parquet")
    assert "cannot be read" in message(str(tmp_path))

    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"words": ["a"]}), tmp_path / "test.parquet")
    assert "column named text" in message(str(tmp_path))


# Windows


@pytest.mark.parametrize("n_tokens", [1, 4, 5, 11, 12])
def test_every_token_is_predicted_once_from_the_one_before(n_tokens):
    tokens = torch.arange(100, 100 + n_tokens)
    windows = Windows(tokens, seq_len=4, eos=7, drop_last=False)
    x = torch.cat([windows[i][0] for i in range(len(windows))])
    y = torch.cat([windows[i][1] for i in range(len(windows))])
    assert {windows[i][k].shape for i in range(len(windows)) for k in (0, 1)} == {(4,)}
    assert torch.equal(y[:n_tokens], tokens)
    assert x[0] == 7 and torch.equal(x[1:n_tokens], tokens[:-1])
    assert (y[n_tokens:] == IGNORE).all() and (x[n_tokens:] == 7).all()


def test_training_windows_are_full():
    windows = Windows(torch.arange(11), seq_len=4, eos=0, drop_last=True)
    assert len(windows) == 2
    assert torch.equal(windows[1][0], torch.tensor([3, 4, 5, 6]))
    assert torch.equal(windows[1][1], torch.tensor([4, 5, 6, 7]))
    with pytest.raises(IndexError):
        windows[2]


# Samplers


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_epoch_order_is_what_distributed_sampler_deals_out(world_size):
    n, serial = 22, EpochOrder(range(22), seed=5)
    seen = []
    for epoch in range(3):
        shards = []
        for rank in range(world_size):
            sampler = DistributedSampler(range(n), world_size, rank, shuffle=True, seed=5, drop_last=True)
            sampler.set_epoch(epoch)
            shards.append(list(sampler))
        dealt = [index for step in zip(*shards, strict=True) for index in step]
        order = list(serial)
        assert sorted(order) == list(range(n))
        assert dealt == order[: n - n % world_size]
        seen.append(order)
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [0, 1, 3, 20])
def test_shards_are_a_partition(n, world_size):
    shards = [list(ShardSampler(range(n), rank, world_size)) for rank in range(world_size)]
    assert sorted(sample for shard in shards for sample in shard) == list(range(n))
    assert [len(ShardSampler(range(n), rank, world_size)) for rank in range(world_size)] == [len(s) for s in shards]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_shard_sampler_asks_the_process_group(monkeypatch):
    assert list(ShardSampler(range(5))) == [0, 1, 2, 3, 4]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert list(ShardSampler(range(5))) == [1, 3]
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        ShardSampler(range(5), rank=2)
