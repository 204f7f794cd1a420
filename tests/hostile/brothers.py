"""Brothers of the corpus's attacks: of each kind another way or two, so that a kind is closed and not a case."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from hostile.corpus import (
    C,
    FORGE_AT_ONCE,
    NOTEBOOK,
    NOTHING,
    RIGHT,
    TREE,
    Attack,
    broadcast,
    changed,
    notebook,
    raising,
    tarred,
    write,
    zipped,
)


# What takes the machine
SEMAPHORES = """
for call in (lambda: libc.semget(0, 32000, 0o1600), lambda: libc.msgget(0, 0o1600)):
    held = [call() for _ in range(20)]
    loot += [number for number in held if number >= 0]
"""
PIPES = """
import fcntl
ends = [os.pipe() for _ in range(300)]
room = 0
for reads, writes in ends:
    os.set_blocking(writes, False)
    try:
        fcntl.fcntl(writes, 1031, 1 << 20)  # F_SETPIPE_SZ
    except OSError:
        pass
    room += fcntl.fcntl(writes, 1032)
loot += [room >> 20] if room > 100 << 20 else []
for pair in ends:
    os.close(pair[0]), os.close(pair[1])
"""
SOCKETS = """
import socket
for _ in range(16):
    if os.fork() == 0:
        held = []
        try:
            while True:
                held.append(socket.socketpair())
        except OSError:
            time.sleep(30)
        os._exit(0)
time.sleep(30)
"""
THREADS = """
import threading
threading.stack_size(1 << 15)
try:
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
except RuntimeError:
    pass
time.sleep(30)
"""
FIRST = """
try:
    sched = os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    loot.append('real time')
except OSError:
    pass
for name, call in (('nice', lambda: os.nice(-20)), ('others', lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), -20)),
               ('name', lambda: libc_says(libc.sethostname(b'mine', 4))),
                   ('clock', lambda: time.clock_settime(time.CLOCK_REALTIME, 0)),
                   ('swap', lambda: libc_says(libc.swapoff(b'/swap'))),
                   ('module', lambda: libc_says(libc.init_module(b'', 0, b''))),
                   ('log', lambda: libc_says(libc.klogctl(5, 0, 0)))):
    try:
        call()
        loot.append(name)
    except OSError:
        pass
"""
LIBC_SAYS = """
def libc_says(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), '')
"""
SWITCHES = """
import glob
for place in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sys/kernel/hostname',
              '/proc/1/oom_score_adj', '/sys/power/state', '/sys/fs/cgroup/cgroup.procs', *glob.glob('/dev/[sv]d*'), '/dev/mem', '/dev/kmsg',
              '/dev/fuse', '/dev/kvm', '/dev/net/tun'):
    try:
        os.close(os.open(place, os.O_WRONLY))
        loot.append(place)
    except OSError:
        pass
"""
FAMILIES = """
import socket
for family in (f for f in range(1, 64) if f not in (1, 2, 10, 16)):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind)
            loot.append(family)
        except OSError:
            pass
"""
DATAGRAMS = """
import socket
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (2, 3, 5, 2 | socket.SOCK_CLOEXEC):
        for protocol in (0, 1, 17, 58, 132, 136):
            try:
                socket.socket(family, kind, protocol)
                loot.append((family, kind, protocol))
            except OSError:
                pass
"""
# The kernel looks at 32 bits of these arguments, a filter at 64.
WIDE = """
number = {'x86_64': 41, 'aarch64': 198}[os.uname().machine]
for family, kind in ((1 << 32 | 2, 2), (2, 1 << 32 | 2), (1 << 32 | 17, 3), (1 << 32 | 40, 1)):
    if libc.syscall(number, ctypes.c_ulong(family), ctypes.c_ulong(kind), 0) >= 0:
        loot.append((family, kind))
"""
PACE = """
for pid in {1, *range(2, os.getpid())} - {os.getpid()}:
    for name, call in (('affinity', lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid))),
                       ('policy', lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))),
                       ('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)))):
        try:
            call()
            loot.append((name, pid))
        except OSError:
            pass
"""
OPEN_ALREADY = """
for number in os.listdir('/proc/self/fd'):
    try:
        leads = os.readlink(f'/proc/self/fd/{number}')
    except OSError:
        continue
    known = ('/runs/', 'socket:', 'pipe:', 'anon_inode:', '/dev/null', '/proc/', '/usr/', os.path.dirname(torch.__file__))
    loot += [] if leads.startswith(known) else [leads]
"""
SECOND = "if 'second' in os.getcwd():\n    return tensor"
FORGED_LINE = """
from grader.engine.inside import observe
for place in (FOUND[0], '/etc/passwd', '/proc/self/environ'):
    observe.Reporter.mine.say(e='broken', cell=place, type='E', text='t', frames=[[place, 1, 'f']])
    observe.Reporter.mine.say(e='strange', name='f', returned='None', promised='Tensor', where=[place, 1, 'f'])
observe.Reporter.mine.say(e='crash', type='E', text='t', frames=[[FOUND[0], 1, 'f'], ['/etc/passwd', 1, 'f']])
time.sleep(30)
"""
LONG_WORDS = "chr(27) + '[2J' + chr(0x202e) + 'x' * 20000"


def deeper_and_deeper(path: Path) -> None:
    """The notebook in forty folders, each nearer to the top than the one before: the last one is right."""
    entries = [("/".join(["d"] * depth + [NOTEBOOK]), bytes(4_900_000)) for depth in range(40, 0, -1)]
    zipped(*entries, (NOTEBOOK, RIGHT))(path)


def lying_sizes(path: Path) -> None:
    """A zip whose list says that a megabyte of zeros is 100 bytes."""
    zipped((NOTEBOOK, bytes(1 << 20)))(path)
    packed = bytearray(Path(f"{path}.zip").read_bytes())
    listed = packed.index(b"PK\x01\x02")
    packed[listed + 24 : listed + 28] = packed[22:26] = (100).to_bytes(4, "little")
    Path(f"{path}.zip").write_bytes(packed)


def marked(**fields: int):
    """A zip whose entry says of itself what it is not: `flags`, for one that is encrypted, or `method`."""

    def make(path: Path) -> None:
        zipped((NOTEBOOK, RIGHT))(path)
        packed = bytearray(Path(f"{path}.zip").read_bytes())
        listed = packed.index(b"PK\x01\x02")
        for (name, value), (first, second) in zip(
            fields.items(), [{"flags": (6, 8), "method": (8, 10)}[f] for f in fields]
        ):
            packed[first : first + 2] = packed[listed + second : listed + second + 2] = value.to_bytes(2, "little")
        Path(f"{path}.zip").write_bytes(packed)

    return make


def sparse(path: Path) -> None:
    """A sparse file of 5 MB and one byte in a tar: nothing of it is there."""
    entry = tarfile.TarInfo(NOTEBOOK)
    entry.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    head[483:495] = b"\x80" + (5_000_001).to_bytes(11, "big")  # its real size
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    Path(f"{path}.tar").write_bytes(bytes(head) + bytes(1024))


def cut_off(path: Path) -> None:
    tarred((NOTEBOOK, RIGHT, "", tarfile.REGTYPE), ending=".tar.gz")(path)
    packed = Path(f"{path}.tar.gz").read_bytes()
    Path(f"{path}.tar.gz").write_bytes(packed[: len(packed) // 2])


def in_a_zip(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


def zip_in_a_zip(depth: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        inner = in_a_zip(NOTEBOOK, RIGHT)
        for _ in range(depth - 1):
            inner = in_a_zip("inner.zip", inner)
        zipped(("inner.zip", inner))(path)

    return make


def many_zips(path: Path) -> None:
    inner = in_a_zip(NOTEBOOK, RIGHT)
    zipped(*((f"{number}.zip", inner) for number in range(1000)))(path)


def links_inside(path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, link, kind in (
            (NOTEBOOK, "/etc/passwd", tarfile.SYMTYPE),
            (f"x/{NOTEBOOK}", "/etc/passwd", tarfile.LNKTYPE),
            (f"../../{NOTEBOOK}", "", tarfile.REGTYPE),
            (f"y/{NOTEBOOK}", "", tarfile.CHRTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.linkname, entry.type = link, kind
            archive.addfile(entry)
    zipped(("inner.tar", packed.getvalue()))(path)


def source(made: dict, text: str) -> None:
    """Put a cell in front of the student's."""
    made["cells"].insert(
        1, {"cell_type": "code", "id": "own", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
    )


def in_source(*texts: str):
    """Cells in front of the student's, the last one first."""
    return changed(lambda made: [source(made, text) for text in texts], TREE)


def evidence(text: str):
    return broadcast(C + FORGE_AT_ONCE + f"put({text})", "")


BROTHERS = [
    # What takes the machine
    Attack(
        "memory in semaphores",
        "SysV semaphores and queues, which nobody counts",
        "seccomp",
        raising(SEMAPHORES),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "memory in pipes",
        "300 pipes of 1 MB on each rank",
        "the kernel's limit for one user",
        raising(PIPES),
        says=NOTHING,
    ),
    Attack(
        "memory in sockets",
        "in sixteen processes of each rank, as many as each may open",
        "the judge counts sockets",
        broadcast(C + SOCKETS),
        says="more sockets",
    ),
    Attack(
        "a bomb of threads",
        "3000 threads on each rank",
        "the judge counts threads",
        broadcast(C + THREADS),
        says="the ranks take more",
    ),
    Attack(
        "to be first",
        "real time, the clock, the machine's name, its log",
        "no capability",
        raising(LIBC_SAYS + FIRST),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "the machine's switches",
        "sysrq, core_pattern, control groups, disks",
        "read-only /proc/sys; no such devices",
        raising(SWITCHES),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "other families of sockets",
        "vsock leads to a virtual machine's host",
        "seccomp: four families",
        raising(FAMILIES),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "junk datagrams",
        "UDP, ping and the like: bytes on the network that nobody reads",
        "seccomp: streams alone",
        raising(DATAGRAMS),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "sockets by wide numbers",
        "families and kinds with a bit that the kernel does not look at",
        "seccomp compares all 64 bits",
        raising(WIDE),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "the pace of others",
        "their processors, their turn, their niceness",
        "seccomp: no such call",
        raising(PACE),
        says=NOTHING,
        users=True,
    ),
    Attack(
        "what is open already",
        "descriptors that lead out",
        "a rank has its own line and files only",
        raising(OPEN_ALREADY),
        says=NOTHING,
    ),
    # Ends
    Attack(
        "os.abort()",
        "leaves a core behind",
        "RLIMIT_CORE; only a rank crashes",
        broadcast("import os\nos.abort()"),
        says="SIGABRT",
    ),
    Attack(
        "a polite signal",
        "SIGTERM for itself",
        "an exit code is never a pass",
        broadcast(C + "os.kill(os.getpid(), 15)\ntime.sleep(30)"),
        says="SIGTERM",
    ),
    Attack(
        "KeyboardInterrupt",
        "as if the instructor had ended it",
        "a rank's exceptions are the student's",
        broadcast("raise KeyboardInterrupt"),
        says="KeyboardInterrupt",
    ),
    Attack(
        "an error that cannot be shown",
        "whose text raises another one",
        "a rank that says nothing has failed",
        broadcast("class E(Exception):\n    def __str__(self):\n        raise SystemExit(0)\nraise E"),
    ),
    Attack(
        "an error of a megabyte",
        "by its name",
        "an event has a likely length",
        broadcast("raise type('X' * 1000000, (Exception,), {})"),
        never=("X" * 3000,),
    ),
    Attack(
        "a line that is not there",
        "an error in line 1,000,000 of its own cell",
        "a line is looked up, not trusted",
        broadcast(
            "import sys\nexec(compile('\\n' * 1000000 + 'raise RuntimeError(1)', sys._getframe().f_code.co_filename, 'exec'))"
        ),
        says="RuntimeError",
    ),
    Attack(
        "recursion without end",
        "fills the stack",
        "a limit of addresses",
        broadcast("def f():\n    return f()\nf()"),
        says="RecursionError",
    ),
    Attack(
        "right in the first call",
        "and not in the second one",
        "a check walks twice, with other numbers",
        broadcast("import os\n" + SECOND),
        says="the second call",
    ),
    # Evidence
    Attack(
        "an integer of a million digits",
        "as evidence",
        "Python's own limit; what cannot be read is a verdict",
        evidence("'1' * 990_000"),
        says="no evidence",
    ),
    Attack(
        "a tensor that is missing",
        "evidence names one that was not sent",
        "what cannot be read is a verdict",
        evidence("""'[{"tensor": "9"}]'"""),
        says="no evidence",
    ),
    Attack(
        "evidence of another kind",
        "a number where lists are",
        "what breaks a check is a verdict",
        evidence("""'{"dict": {"a": 7}}'"""),
    ),
    Attack("no numbers", "NaN and Infinity as evidence", "they equal nothing", evidence("'[NaN, Infinity, [NaN]]'")),
    Attack(
        "a word for a tensor",
        "a string of a megabyte as the result",
        "the result's kind is told",
        broadcast("return 'x' * 900_000", ""),
        never=("x" * 3000,),
    ),
    # Events
    Attack(
        "brackets in a note",
        "4 MB of them on each rank, in the marks of the check",
        "a note is a value or a few",
        broadcast("from grader.engine.inside import observe\nfor _ in range(24):\n    observe.mark(x=[[]] * 40_000)"),
        says="no sense",
    ),
    Attack(
        "an end of what never began",
        "waits for messages that do not exist",
        "events are checked at the door, and by the diagnosis",
        broadcast(
            "from grader.engine.inside import observe\nobserve.Reporter.mine.say(e='done', of=10**6)\nobserve.Reporter.mine.say(e='wait', of=10**6)",
            "return tensor",
        ),
    ),
    Attack(
        "a forged line",
        "of a secret file: the judge would quote it",
        "only the student's own lines are quoted",
        broadcast(C + FORGED_LINE, ""),
        never=("root:",),
    ),
    Attack(
        "a forged change",
        "of an argument called ESC, U+202E and 20 KB",
        "strings are cleaned where they are kept",
        broadcast(
            f"from grader.engine.inside import observe\nobserve.Reporter.mine.say(e='touched', name='f', argument={LONG_WORDS}, change={LONG_WORDS}, where=None)",
            "return tensor",
        ),
        never=("\\u001b", "\\u202e", "x" * 3000),
    ),
    # The notebook
    Attack(
        "a zero byte", "in the source", "whatever a parser raises is the submission's", in_source("x = '\0'"), marks=1
    ),
    Attack(
        "half a letter",
        "a surrogate in the source",
        "whatever a parser raises is the submission's",
        in_source("x = '\ud800'"),
        marks=1,
    ),
    Attack(
        "line ends that are none",
        "form feeds and U+2028 in the source",
        "lines are Python's",
        in_source("x = '\x0c\u2028\x85\x1c'"),
        marks=1,
    ),
    Attack(
        "a number of 10,000 digits",
        "in the source",
        "the judge survives its parsers",
        broadcast(f"x = {'7' * 10_000}", ""),
        says="does not run",
    ),
    Attack(
        "commands for the shell",
        "by ! and %%bash, in cells of their own",
        "there is no IPython",
        in_source("!touch /tmp/CANARY", "%%bash\ntouch /tmp/CANARY"),
        marks=1,
    ),
    Attack(
        "a notebook in UTF-16",
        "which the judge does not read",
        "said to be unreadable",
        lambda path: write(path, json.dumps(notebook(TREE)).encode("utf-16")),
        says="not a notebook that can be read",
    ),
    # Archives
    Attack(
        "a zip that lies",
        "a megabyte is 100 bytes, says its list",
        "no more is read than would be taken",
        lying_sizes,
        says="cannot be read",
        state="refused",
    ),
    Attack(
        "a zip with a password",
        "which nobody knows",
        "said to be unreadable",
        marked(flags=1),
        says="cannot be read",
        state="refused",
    ),
    Attack(
        "a zip of another method",
        "packed as nobody can unpack",
        "said to be unreadable",
        marked(method=99),
        says="cannot be read",
        state="refused",
    ),
    Attack(
        "again and again",
        "the notebook forty times, each nearer to the top",
        "one is kept, of a likely size",
        deeper_and_deeper,
        marks=1,
    ),
    Attack(
        "a zip in a zip",
        "the notebook is in the inner one, as some platforms pack it",
        "none: it is opened as the outer one, on the same rank",
        zip_in_a_zip(1),
        marks=1,
    ),
    Attack(
        "a zip in a zip in a zip",
        "and so on: archives that never end",
        "archives are opened to a depth of two",
        zip_in_a_zip(9),
        says="it lies inside of too many archives",
        state="refused",
    ),
    Attack(
        "a zip of zips",
        "a thousand of them, all with the notebook",
        "sixteen archives are opened, at most",
        many_zips,
        marks=1,
        says="more than 16 archives",
    ),
    Attack(
        "links in an inner archive",
        "to a secret, and out of the folder",
        "only plain files are taken, of any archive",
        links_inside,
        says="a link",
        state="nothing of the course",
        never=("root:",),
    ),
    Attack(
        "a sparse file",
        "of 5 MB and one byte, in a tar of 2 KB",
        "no more is read than would be taken",
        sparse,
        says="longer than",
        state="nothing of the course",
    ),
    Attack(
        "half an archive",
        "its end is missing",
        "said to be unreadable",
        cut_off,
        says="cannot be read",
        state="refused",
    ),
]
