"""What `resilient_training` has taught, for the scripts that come after it."""

TAUGHT_IN = "resilient_training"  # no rank of that lesson can import this


def find_epoch(step: int, an_epoch: int) -> tuple[int, int]:
    """In which epoch, from 0, a run is after `step` steps, and how many of its `an_epoch` steps are done."""
    epoch = max(step - 1, 0) // an_epoch
    return epoch, step - epoch * an_epoch
