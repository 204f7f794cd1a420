"""What several files with checks of pipeline_training use."""

from .ranks import LONG, made_model


def with_stages(many):
    """The number of stages per rank in words."""
    return "" if many == 1 else f", {('two', 'three')[many - 2]} stages per rank"


# ---------------------------------------------------------------------------------------------------
# TODO 3: first weights


def serial_weights(seed):
    return made_model(seed, **LONG).state_dict()
