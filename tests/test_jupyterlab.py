"""The student's notebook as a student uses it: JupyterLab in a browser, without a sight of internals."""

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from course_copy import Course
from grader.engine.lesson.lessons import read_percent, source_path
from grader.engine.lesson.todo_regions import compose
from student_notebook import LESSON, MEAN, answer, blank, save

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402  only where it is installed

PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
missing = [name for name, path in PROGRAMS.items() if path is None]
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{' and '.join(missing)} not found: apt install chromium chromium-driver"
)

LONG = 180  # seconds that nothing here takes, even on a busy machine
FLAGS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1280,900",
)

# The page's own notebook, by its own means: no guesses at where a key or a click would land.
PAGE = """
const panel = window.jupyterapp?.shell.currentWidget, notebook = panel?.content;
const cell = key => notebook.widgets.findIndex(widget => widget.model.id === key);
"""


@pytest.fixture
def left():
    """Processes that must be gone at the end; killed if they are not."""
    processes = []
    yield processes
    living = psutil.wait_procs(processes, timeout=60)[1]
    for process in living:
        process.kill()
    assert not living, f"left running: {living}"


@pytest.fixture
def course(tmp_path):
    folder = Course(tmp_path / "course").folder
    save(blank(), folder / "notebooks" / f"{LESSON}.ipynb")
    return folder


@pytest.fixture
def address(course, tmp_path, left):
    """`./workbook lab`, on a port that is free."""
    home = tmp_path / "home"
    home.mkdir()
    given = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
    server = subprocess.Popen(
        ["./workbook", "lab", "--no-browser", "--", "--ServerApp.port=0", "--expose-app-in-browser", "--allow-root"],
        cwd=course,
        env={**given, "HOME": str(home), "WORKBOOK_PYTHON": sys.executable},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in server.stderr] + [lines.put("")], daemon=True).start()
    process = psutil.Process(server.pid)
    try:
        said = []
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/\S*token=(\w+)", (said or [""])[-1])):
            said.append(lines.get(timeout=LONG))
            assert said[-1], f"JupyterLab ended: {''.join(said)}"
        yield f"http://127.0.0.1:{found[1]}/lab/tree/notebooks/{LESSON}.ipynb?token={found[2]}&reset"
    finally:
        left += [process, *process.children(recursive=True)]  # the kernel and its fork-server too
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


@pytest.fixture
def browser(tmp_path, left, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for flag in (*FLAGS, f"user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(executable_path=PROGRAMS["chromedriver"])
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(LONG)
    driver.set_script_timeout(LONG)
    try:
        yield driver
    finally:
        process = psutil.Process(service.process.pid)
        left += [process, *process.children(recursive=True)]
        driver.quit()


def test_a_student_solves_a_todo(address, browser, course, tmp_path):
    shots = Path(os.environ.get("WORKBOOK_SCREENSHOTS", tmp_path))
    shots.mkdir(parents=True, exist_ok=True)
    file = course / "notebooks" / f"{LESSON}.ipynb"
    given = file.read_bytes()

    def ready(driver):
        return driver.execute_script(
            PAGE + "return Boolean(notebook?.widgets?.length && panel.sessionContext.session?.kernel)"
        )

    def do(script, *values):
        return browser.execute_async_script(
            PAGE + f"(async () => {{{script}}})().then(arguments[arguments.length - 1])", *values
        )

    def run(key):
        do(
            "notebook.activeCellIndex = cell(arguments[0]); await"
            " window.jupyterapp.commands.execute('notebook:run-cell')",
            key,
        )

    def check(name, todo=1):
        """Run all cells, then the test cell again; what stands below it, and a picture."""
        if todo == 1:
            do("await window.jupyterapp.commands.execute('notebook:run-all-cells')")  # stops at the first that raises
        run(f"test_{todo}")
        do("await notebook.scrollToItem(cell(arguments[0]), 'center')", f"test_{todo}")
        shown = WebDriverWait(browser, LONG).until(
            lambda driver: driver.execute_script(
                PAGE + "const area = notebook.widgets[cell(arguments[0])].outputArea; return area.model.length &&"
                " area.node.innerText",
                f"test_{todo}",
            )
        )
        assert browser.save_screenshot(str(shots / f"jupyterlab-{name}.png"))
        return shown

    browser.get(address)
    WebDriverWait(browser, LONG).until(ready)
    do("await panel.context.ready; await panel.sessionContext.ready")
    # Nothing is asked before anything can be read.
    assert "Jupyter news" not in browser.find_element("tag name", "body").text

    # No line is cut, though many are longer than a cell is wide.
    assert do(
        "const lines = [...document.querySelectorAll('.jp-CodeCell .cm-scroller')]; return lines.length &&"
        " lines.every(area => area.scrollWidth <= area.clientWidth + 1)"
    )

    shown = check("not-done")
    assert "· 01_collectives/1" in shown and "TODO 1 is not done yet" in shown and "hint" in shown

    for name, text in (("wrong", answer(MEAN)), ("right", answer())):
        do("notebook.widgets[cell('todo_1')].model.sharedModel.setSource(arguments[0])", text)
        shown = check(name)
        if name == "wrong":
            assert (
                "✗ 01_collectives/1" in shown and "expected" in shown and "seen" in shown and "Traceback" not in shown
            )
    assert shown.startswith("✓ 01_collectives/1")

    # A deadlock: all ranks send, and nobody receives. The kernel comes back with the diagnosis, and goes on.
    source = next(
        c.source for c in read_percent(source_path(LESSON).read_text("utf-8"), LESSON).cells if c.get("id") == "todo_4"
    )
    stuck = (
        "right = (rank + 1) % world\ndist.send(tensor.tensor_split(world)[first_piece(rank, world)], right)\nreturn"
        " tensor"
    )
    for name, text in (
        ("deadlock", compose(source, [4], {4: ["return (rank - 1) % world", stuck]})),
        ("alive", compose(source, [4])),
    ):
        do("notebook.widgets[cell('todo_4')].model.sharedModel.setSource(arguments[0])", text)
        run("todo_4")
        shown = check(name, todo=4)
        if name == "deadlock":
            assert "deadlock: rank" in shown and "waits in send" in shown and "Traceback" not in shown
    assert shown.startswith("✓ 01_collectives/4")
    assert do("return panel.context.model.dirty") and file.read_bytes() == given  # all of it without saving
