"""resilient_training, killed: a rank, torchrun, a node by kill -9, and by signals."""

import sys

import pytest

from benchmarks import resilience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    assert resilience.start(out, 2).wait(resilience.PATIENCE) == 0, out.with_name("run.log").read_text()
    return resilience.losses(out)


@pytest.mark.drawn
@pytest.mark.parametrize("fault", resilience.FAULTS)
def test_after_any_fault_the_losses_are_those_of_the_run_never_stopped(fault, straight, tmp_path):
    lost, _, seen = resilience.suffer(tmp_path / "run", fault)
    assert lost <= 10 if "kill" in fault else lost == 0
    assert seen == pytest.approx(straight, rel=1e-4)
