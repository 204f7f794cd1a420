"""The vocabulary-parallel loss is the loss: on 1 to 4 ranks, whatever the words, the pieces and the targets."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from utils import plan
from utils.after_04_tensor_parallel import vocab_parallel_head_loss
from utils.loss import head_loss

IGNORE = -100


def inputs(V, dtype=torch.float64, D=5):
    draw = torch.Generator().manual_seed(V)
    h = torch.randn(2, 20, D, generator=draw, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, generator=draw, dtype=dtype, requires_grad=True)
    y = torch.randint(V, (2, 20), generator=draw)
    y[0, 3] = y[1, 0] = IGNORE
    return h, weight, y


def shard(whole, group):
    """This rank's rows, as DTensor cuts them; the last ranks may have none."""
    rows = -(-len(whole) // dist.get_world_size(group))
    return whole.detach()[dist.get_rank(group) * rows :][:rows].clone().requires_grad_()


def agree(group, V, dtype, scale=1.0, nothing=False, rtol=1e-12):
    h, weight, y = inputs(V, dtype)
    if nothing:
        y = torch.full_like(y, IGNORE)
    mine = shard(weight, group)
    seen, right = (
        vocab_parallel_head_loss(h * scale, mine, y, IGNORE, group, V),
        head_loss(h * scale, weight, y, IGNORE),
    )
    torch.testing.assert_close(seen, right, rtol=rtol, atol=0)
    got, whole = (torch.autograd.grad(3 * x, (h, w)) for x, w in ((seen, mine), (right, weight)))
    torch.testing.assert_close(got[0], whole[0], rtol=rtol, atol=rtol)
    torch.testing.assert_close(got[1], shard(whole[1], group).detach(), rtol=rtol, atol=rtol)
    with torch.no_grad():
        torch.testing.assert_close(
            vocab_parallel_head_loss(h * scale, mine, y, IGNORE, group, V), right, rtol=rtol, atol=0
        )


def frozen(group):
    h, weight, y = inputs(11)
    mine = shard(weight, group)
    (right,) = torch.autograd.grad(head_loss(h, weight, y, IGNORE), h)
    seen = vocab_parallel_head_loss(h, mine.detach(), y, IGNORE, group, 11)
    torch.testing.assert_close(torch.autograd.grad(seen, h)[0], right)


def autocast(group):
    """The factors are rounded to bfloat16, the sums are not."""
    h, weight, y = inputs(50, torch.float32)
    mine = shard(weight, group)
    with torch.autocast("cpu", torch.bfloat16):
        seen = vocab_parallel_head_loss(h, mine, y, IGNORE, group, 50)
    assert seen.dtype == torch.float32
    right = head_loss(h, weight, y, IGNORE)
    torch.testing.assert_close(seen, right, rtol=2**-8, atol=0)
    whole, got = torch.autograd.grad(right, h)[0], torch.autograd.grad(seen, h)[0]
    assert (
        got.dtype == torch.float32
        and torch.nn.functional.cosine_similarity(got.flatten(), whole.flatten(), dim=0) > 0.999
    )


def ranks_work(rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 4)
    dist.init_process_group("gloo", rank=rank, world_size=4, store=store, timeout=timedelta(seconds=60))
    for world in (1, 2, 3, 4):
        group = dist.new_group(list(range(world)))
        if rank < world:
            for V in (12, 11, 5, 2):  # 5 words on 4 ranks: the last has none
                agree(group, V, torch.float64)
            agree(group, 11, torch.float64, nothing=True)
            agree(group, 11, torch.float32, scale=1e4, rtol=1e-4)
            pieces, plan.PIECE_ON_CPU = plan.PIECE_ON_CPU, 16 * -(-11 // world)  # 16 tokens at a time, on all ranks
            agree(group, 11, torch.float64)
            plan.PIECE_ON_CPU = pieces
            frozen(group)
            autocast(group)
    dist.barrier()
    dist.destroy_process_group()


def test_it_is_the_loss_of_one_process(tmp_path):
    mp.spawn(ranks_work, (str(tmp_path),), nprocs=4)
