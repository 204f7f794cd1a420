"""What the engine's tests run on ranks: the student's own `work`."""


def work(student, rank, world):
    return student.work(rank, world)


def total(student, rank, world, numbers):
    import torch

    return student.total(torch.tensor(numbers))
