"""What the engine's tests run on ranks: the student's own `work`."""

import os


def work(student, rank, world):
    return student.work(rank, world)


def total(student, rank, world, numbers):
    import torch

    return student.total(torch.tensor(numbers))


def reads(archive):
    """In place of what reads a submission."""
    return {"refused": [archive]}


def reads_without_end(archive):
    while True:
        pass


def dies_as_it_reads(archive):
    os._exit(3)


def three(code, rank, world):
    import torch

    return torch.full((3,), 3.0)


def breaks(code, rank, world):
    return {}["no such key"]


def first_of(code, rank, world):
    """What a student's function returned: here a list, where a tensor was asked for."""
    import torch

    return [1, 2] if hasattr(code, "wrong") else torch.ones(2)
