"""What several files with checks of ddp_training use."""

from grader.kit import corpus

from .ranks import BATCH

# ---------------------------------------------------------------------------------------------------
# TODOs 1–3: setup()


LAYOUTS = ((1, 3), (2, 2))  # nodes, ranks: in the second, rank and local rank differ


# ---------------------------------------------------------------------------------------------------
# Whole runs: TODOs 9, 11, 13


EPOCHS = 4  # epoch % 2 and epoch % 3 are not the epoch


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a learning rate that moves weights.
ARGV = (
    f"--data data --out out --epochs {EPOCHS} --batch-size {BATCH} --seq-len 8 --dim 16 --heads 2 --layers 1 "
    "--optimizer sgd --lr 0.5 --seed 5 --log-every 2"
).split()


def whole_run(student, world, nodes=1):
    return student.run(ARGV, corpus(student), world=world, nodes=nodes)


def serial_run(student):
    return student.serial(ARGV, corpus(student))
