# %% [markdown]
# # Collectives
#
# A parallel training run is several copies of one program, each a process with its own
# memory. The copies are called **ranks** and numbered from 0; how many there are is the
# **world size**. Every rank runs the same lines, and what makes them differ is the rank
# number: it says which part of the data, or of the model, is mine.
#
# No rank can see another's tensors. To use what the others have computed they communicate,
# and almost all of training's communication is one of a few **collectives**: operations
# that every rank calls together, each giving its own tensor and each getting a result. If
# one rank does not call, the others wait for it for ever.
#
# ![What each rank holds before and after each collective](../images/collectives.png)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import torch

# %% [markdown]
# ## Three collectives
#
# Let rank $r$ of $N$ hold the vector $x_r$ before the call.
#
# - **All-reduce** combines the vectors element by element (here: adds them) and leaves the
#   whole result on every rank. Data-parallel training does this to the gradients, so that
#   all ranks take the same step.
# - **All-gather** leaves all vectors, joined in the order of the ranks, on every rank. This
#   is how parameters that are stored in pieces come together just before they are used.
# - **Reduce-scatter** adds the vectors too, but shares the result out: the sum is cut into
#   $N$ equal chunks and rank $r$ keeps chunk $r$ only. Each rank ends with the piece of the
#   gradient that it is in charge of, and holds no more than that.
#
# Before you let a library do this on real ranks, be the library. Here `inputs` is a list
# with the vector of each rank; return the list of what each rank holds afterwards.

# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_reduce(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds after an all-reduce (sum) of the 1-D tensors ``inputs``."""
    # TODO 1: Predict what each rank holds after an all-reduce, an all-gather and a
    # reduce-scatter. Here the all-reduce: each rank holds the sum of all inputs. Ranks
    # share no memory, so no two of them may end up with the same memory: `.clone()` copies a tensor.
    ### BEGIN SOLUTION
    total = torch.stack(inputs).sum(dim=0)
    return [total.clone() for _ in inputs]
    ### END SOLUTION


def all_gather(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds after an all-gather of the 1-D tensors ``inputs``."""
    # TODO 1, again: the all-gather. Each rank holds one long vector: all inputs, by rank.
    ### BEGIN SOLUTION
    return [torch.cat(inputs) for _ in inputs]
    ### END SOLUTION


def reduce_scatter(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds after a reduce-scatter (sum) of the 1-D tensors ``inputs``.

    Their length is a multiple of the number of ranks.
    """
    # TODO 1, again: the reduce-scatter. Each rank holds its own chunk of the sum, no more.
    ### BEGIN SOLUTION
    total = torch.stack(inputs).sum(dim=0)
    return [chunk.clone() for chunk in total.chunk(len(inputs))]
    ### END SOLUTION


# %% [markdown]
# Try it on three ranks. Work out by hand what the nine lines should say, then run the cell.

# %%
inputs = [torch.tensor([0.0, 1.0, 2.0]) + 10 * rank for rank in range(3)]
for collective in (all_reduce, all_gather, reduce_scatter):
    print(collective.__name__)
    for rank, held in enumerate(collective(inputs)):
        print(f"  rank {rank}: {inputs[rank].tolist()} -> {held.tolist()}")

# %% [markdown]
# The next cell compares your three functions with what real ranks hold after the real
# collectives. It tells you what differs, and you may run it as often as you like.

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/1")
