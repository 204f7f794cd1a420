"""What `resilient_training` has taught, for the scripts that come after it."""

TAUGHT_IN = "resilient_training"  # no rank of that lesson can import this
TAUGHT_BY = "3"  # a lesson that needs this waits for that TODO alone


def find_epoch(step: int, an_epoch: int) -> tuple[int, int]:
    """In which epoch, from 0, a run is after `step` steps, and how many of its `an_epoch` steps are done."""
    epoch = max(step - 1, 0) // an_epoch
    return epoch, step - epoch * an_epoch
