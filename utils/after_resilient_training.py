"""What `resilient_training` teaches, for later scripts."""

TAUGHT_IN = "resilient_training"  # no rank of that lesson can import this
TAUGHT_BY = "3"  # a lesson that needs this waits only for that TODO


def find_epoch(step: int, an_epoch: int) -> tuple[int, int]:
    """The epoch, from 0, of a run after `step` steps, and how many of the epoch's `an_epoch` steps are done."""
    epoch = max(step - 1, 0) // an_epoch
    return epoch, step - epoch * an_epoch
