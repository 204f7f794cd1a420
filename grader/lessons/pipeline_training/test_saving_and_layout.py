"""Checks of pipeline_training, TODOs 8 and 9: saving and layout.

| TODO | achievement                     | evidence                                                            | needs |
|------|---------------------------------|---------------------------------------------------------------------|-------|
| 8    | one file of the whole model     | which rank writes; torch.load(weights_only=True) reads it here, twice | |
| 9    | the grid, samples, the whole run | make_mesh() on 6 ranks, make_samplers(); main() on 4 and 2 ranks against the serial run | 1 – 8 |
"""  # noqa: E501

from grader.kit import (
    cases,
    check_checkpoint,
    check_dealt,
    check_last_weights,
    check_parts_travel,
    corpus,
    each_once,
    expect,
    hinted,
    mains_on_rank,
    must_move,
    one_writer,
    rectangles,
    reported,
    same_report,
    todo,
)
from utils.pipeline_flags import splits_backward

from .common import serial_weights
from .ranks import SET_SIZES, mesh_on_rank, samplers_on_rank, save_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 8: one file


@todo(8)
def test_todo8_save(student):
    for grid in student.several(((2, 2, 2), (3, 1, 1))):
        run = student.call(save_on_rank, world=grid[0] * grid[1], grid=grid)
        one_writer(run)
        first = student.reference(serial_weights, seed=0)
        check_checkpoint(
            run.files["saved/model.pt"], {name: weight + 1.0 for name, weight in first.items()}, epoch=3, earlier=first
        )
        whole = 4 * sum(weight.numel() for weight in first.values())
        for rank, seen in enumerate(run.evidence[1:], start=1):
            expect(
                seen["peak"] < 0.9 * whole,
                f"on {grid[0]} × {grid[1]} ranks rank {rank} assembles the whole model, too: only rank 0 needs it",
                f"its own part, of {whole:,} bytes",
                f"{seen['peak']:,} bytes",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 9: the grid, and the samples; the law of the course


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 2 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 4 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()


RUNS = (
    (4, "--pp 2 --schedule interleaved --microbatches 6"),
    (4, "--pp 4 --schedule zero-bubble --microbatches 4"),
    (2, "--pp 2 --schedule 1f1b --microbatches 3"),
)


PIPELINES = (2, 3, 6, 1)  # --pp on 6 ranks


KEPT = ("held", "steps", "still_in_a_group", "files")  # of a run: no weights, which lie in stages


def serial_run(student, argv=ARGV):
    return student.serial(["--data", "data", "--out", "out", *argv], corpus(student))


def same_weights(told, serial, run, out, pp):
    """The last checkpoint holds the serial run's last weights, under their names."""
    expect(
        f"{out}/model-final.pt" in run.files,
        f"{told} there is no model-final.pt",
        "model-final.pt",
        sorted(run.files)[:4],
    )
    check_last_weights(told, run.files[f"{out}/model-final.pt"], serial.evidence[0]["weights"])


@todo(9, needs=(1, 2, 3, 4, 5, 6, 7, 8))
def test_todo9_grid(student):
    serial = serial_run(student)
    must_move(student, serial)
    with hinted("Which ranks are neighbours in your grid, and what do they send each other?"):
        world = 6
        for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, pipelines=PIPELINES).evidence):
            for pp, mesh in zip(PIPELINES, meshes, strict=True):
                check_mesh(f"with --pp {pp} on {world} ranks", mesh, pp, world // pp, rank)
    with hinted("All ranks of a pipeline read the same samples. How many parts are there, then?"):
        check_samplers(student)
    with hinted("Each TODO is right on its own. What is the first number that differs, and which TODO computes it?"):
        check_whole_runs(student, serial)


def check_mesh(told, mesh, pp, data, rank):
    axes = mesh["axes"]
    names = sorted(axes)
    kind = mesh["kind"]
    expect(bool(axes), f"{told} make_mesh returns no mesh with names", "a DeviceMesh", kind, rank)
    expect(
        names == ["data", "pp"],
        f"{told} the axes are not named pp and data, and they are looked up",
        ["data", "pp"],
        names,
        rank,
    )
    expect(
        len(axes["pp"]) == pp,
        f"{told} the axis pp has {len(axes['pp'])} ranks, and data {len(axes['data'])}",
        f"{pp} stages, {data} pipelines",
        f"{len(axes['pp'])} stages, {len(axes['data'])} pipelines",
        rank,
    )
    copies, stages = [rank // data * data + d for d in range(data)], [rank % data + k * data for k in range(pp)]
    expect(
        sorted(axes["data"]) == copies,
        f"{told} the ranks that sum gradients with rank {rank} are not its neighbours: the largest messages go between"
        " nodes",
        copies,
        axes["data"],
        rank,
    )
    expect(
        sorted(axes["pp"]) == stages and axes["pp"] == stages and axes["data"] == copies,
        f"{told} the ranks along an axis are not in ascending order, as in a process group: stages would send to the"
        " wrong ranks",
        {"pp": stages, "data": copies},
        axes,
        rank,
    )


def check_samplers(student):
    draw = student.draw("samplers")
    seed = draw.randrange(1000)
    for pp, data in (grid for grid in rectangles(draw, most=6) if grid[0] > 1):  # a pipeline has two stages or more
        told = f"on {pp} × {data} ranks"
        ranks = student.call(samplers_on_rank, world=pp * data, seed=seed, grid=(pp, data)).evidence
        for rank, seen in enumerate(ranks):
            listed = isinstance(seen, list)
            expect(listed, f"{told} make_samplers does not return three samplers", "three", seen, rank)
            head = ranks[rank % data]
            for name, mine, its in zip(("training", "validation", "test"), seen, head, strict=True):
                expect(
                    mine == its,
                    f"{told} ranks {rank % data} and {rank} are stages of one pipeline, and read different {name} "
                    f"samples",
                    its[:6],
                    mine[:6],
                    rank,
                )
        for name, size, k in (("validation", SET_SIZES[1], 1), ("test", SET_SIZES[2], 2)):
            each_once(name, [ranks[d][k] for d in range(data)], size)
        check_dealt(told, [ranks[d][0] for d in range(data)], SET_SIZES[0], seed, batch=4 * data)


def check_whole_runs(student, serial):
    world = 4
    losses = [line["loss"] for line in reported(serial) if line["kind"] == "step"]
    psi = sum(weight.numel() for weight in serial.evidence[0]["weights"].values())
    grids = student.several((ranks, flags) for ranks, flags in RUNS if splits_backward() or "zero-bubble" not in flags)
    runs = [[ranks, [*ARGV, *flags.split()]] for ranks, flags in grids]
    run = student.call(mains_on_rank, world=world, group=None, runs=runs, data=corpus(student), keep=KEPT)
    for case, (ranks, flags) in enumerate(grids):
        told, pp = f"on {ranks} ranks with {flags}", int(flags.split()[1])
        left = [mine[case] for mine in run.evidence if mine[case]]
        for rank, seen in enumerate(left):
            check_rank_of_run(told, rank, seen, len(losses), psi)
        total = sum(seen["held"] for seen in left) * pp // ranks
        together = f"{told} the stages of the pipelines hold {total:,} weights together"
        expect(total == psi, together, f"{psi:,}", f"{total:,}")
        same_report(f"{told},", reported(serial), reported(run, f"out-{case}"))
        same_weights(f"{told},", serial, run, f"out-{case}", pp)
        # The first stage sends the stream (B, T, D) of each pipeline's samples, the last one its gradient, others both.
        due = len(losses) * 4 * 12 // (ranks // pp) * 8 * 16
        check_parts_travel(told, cases(run.events)[case][:ranks], due, len(losses))


def check_rank_of_run(told, rank, seen, steps, psi):
    made = f"{told} the optimizer of rank {rank} steps {seen['steps']} times"
    expect(seen["steps"] == steps, made, steps, seen["steps"], rank)
    expect(
        seen["held"] < psi,
        f"{told} the optimizer of rank {rank} holds all {psi:,} weights",
        "its stages alone",
        f"{seen['held']:,}",
        rank,
    )
    stays = f"{told} rank {rank} ends without leaving the process group"
    expect(not seen["still_in_a_group"], stays, "no group", "a group", rank)
