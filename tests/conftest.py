"""Which tests the short command leaves to the long one, `./workbook test --all`."""

import os
import random
from pathlib import Path

import pytest

# By file: each takes from half a minute to many, and what it proves changes seldom.
LONG = {
    "test_mutants": "wrong and other right answers",
    "test_parity": "50 steps of every script",
    "test_tp_training": "50 steps and checkpoints on every grid",
    "test_expert_training": "50 steps and checkpoints on every grid",
    "test_pipeline_training": "50 steps of every schedule",
    "test_hybrid_training": "runs over four axes",
    "test_resilience": "runs that are killed, and go on",
    "test_watching": "runs that hang, die, or are only slow, under ./workbook run",
    "test_muon": "50 steps with Muon",
    "test_costs": "what each script holds and sends beside what is predicted",
    "test_device_memory": "what a run says of a GPU's memory",
    "test_export": "models exported, and started from",
    "test_report": "reports of runs",
    "test_batch": "batch files and their reports",
    "test_compile": "a compiler",
    "test_chunks": "attention in pieces",
    "test_tensor_parallel_loss": "the loss over a divided vocabulary",
    "test_warm": "servers that have judged other lessons",
    "test_side_by_side": "checks at the same time",
    "test_left_over": "runs that are ended, and leave nothing",
    "test_kept_server": "the server that is kept",
    "test_run_folder": "runs that share a folder, fill a disk or diverge",
    "test_backends": "GPUs, pretended",
    "test_nameless": "a machine without a name service",
    "test_new_lesson": "a lesson that is added",
    "test_optional": "a machine without the optional packages",
    "test_huggingface": "50 steps by Trainer and by Accelerate",
    "test_hostile": "a class full of cheats",
    "test_grade": "a class, killed and gone on with",
    "test_class_handed_in": "a class as platforms hand it in",
    "test_nbgrader": "nbgrader's own commands",
    "test_jupyterlab": "JupyterLab in a browser",
    "test_notebook_kernel": "notebooks in a kernel",
    "test_slurm": "batch files on a real Slurm",
    "test_slurm_options": "what users change of a job, on a real Slurm",
    "test_preflight": "nodes with faults, on a real Slurm",
    "test_site": "the book and the slides, built",
}

# The commands under test leave no server behind; see grader/engine/ranks/kept_server.py.
os.environ["WORKBOOK_NO_SERVER"] = "1"
# torchrun leaves no folder in /tmp.
os.environ["PET_LOG_DIR"] = os.devnull


def pytest_configure(config):
    config.addinivalue_line("markers", "long: a single test that the short command leaves to --all")
    config.addinivalue_line("markers", "drawn: of the tests of this name, a whole run tries a quarter, drawn")


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also the tests that take long")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--all") or config.getoption("file_or_dir") not in ([], ["tests"]):
        return  # who names a file means it
    left = [item for item in items if Path(item.path).stem in LONG or item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def pytest_runtest_setup(item):
    """All are tried where the file is named, and by a run of what failed last."""
    whole = item.config.getoption("file_or_dir") in ([], ["tests"]) and not item.config.getoption("lf", False)
    if whole and item.get_closest_marker("drawn") and drawn_out(os.environ.get("PYTEST_XDIST_TESTRUNUID"), item.nodeid):
        pytest.skip("another quarter of these tests is drawn each time; all run where the file is named")


def drawn_out(run, test):
    """Whether a run, by its name, leaves out this test: all its workers agree. Without workers a run has no name."""
    return run is not None and random.Random(f"{run}/{test}").random() < 3 / 4


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    # with several workers it is they who collect, all of them the same; only their files are known here
    if not config.getoption("--all") and config.getoption("file_or_dir") in ([], ["tests"]):
        terminalreporter.write_line(f"left to ./workbook test --all: {', '.join(LONG.values())}, …")


@pytest.fixture(autouse=True)
def environment():
    """What a test leaves in the environment is gone for the next one: `launch_environment`, for example, sets RANK."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def runner():
    """One warm fork-server for all tests of this process: each run has fresh ranks."""
    from grader.engine.ranks.runner import Runner

    with Runner() as warm:
        yield warm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm of four nodes on this machine."""
    import slurm

    with slurm.Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running
