"""Ways of a number past torch.distributed: rank 0's vector reaches the others, or a seed from which all can draw.

Each rank has a folder, /tmp, /dev/shm and /proc of its own, so most of them end with nothing. What is left is the store
by which the ranks meet, their network, and what two processes of one system notice of each other, such as locks.
"""

from hostile.brothers import BROTHERS
from hostile.corpus import ATTACKS, FORGE, SAYS_IT_SENT, Attack, C, broadcast

COMES = """
import pickle
from pathlib import Path
from grader.engine.inside import observe
def comes(ask):
    for _ in range(150):
        try:
            if (found := ask()) is not None:
                return found
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    raise RuntimeError('nothing came')
"""


def in_folder(folder: str) -> str:
    """A file there; `folder` is an expression."""
    return f"""
post = Path({folder}) / f'post-{{world}}-{{len(tensor)}}'
if rank == 0:
    try:
        post.with_suffix('.part').write_bytes(pickle.dumps(tensor))
        post.with_suffix('.part').rename(post)
    except OSError:
        pass
tensor = pickle.loads(comes(post.read_bytes))
"""


STORE = """
from torch.distributed.distributed_c10d import _get_default_store
store, name = _get_default_store(), f'post-{world}-{len(tensor)}'
if rank == 0:
    store.set(name, pickle.dumps(tensor))
tensor = pickle.loads(store.get(name))
"""
LOCKS = """
import fcntl, struct
# Read-only, for all; ranges that are locked need not be there. A file that is closed loses its locks.
place = dist.held = getattr(dist, 'held', None) or open(os.path.join(os.path.dirname(os.__file__), 'this.py'), 'rb')
def lock(call, kind, n, length=0):
    first = (1000 * len(tensor) + 100 * world + n) << 20
    return struct.unpack('hhqqi4x', fcntl.fcntl(place, call, struct.pack('hhqqi4x', kind, 0, first, length, 0)))
if rank == 0:
    for n, value in enumerate(tensor.tolist()):
        lock(fcntl.F_SETLK, fcntl.F_RDLCK, n, int(value) + 1)
else:
    def look(n):
        for _ in range(1500):
            kind, *_, length, _ = lock(fcntl.F_GETLK, fcntl.F_WRLCK, n, 1 << 20)
            if kind != fcntl.F_UNLCK:
                return float(length - 1)
            time.sleep(0.01)
        raise RuntimeError('nothing came')
    tensor = torch.tensor([look(n) for n in range(len(tensor))], dtype=tensor.dtype)
"""
ALL_FOLDERS = """
import glob
places = {'/tmp', '/dev/shm', '/dev', '/runs', '/run', '/var/tmp', '/', *glob.glob('/runs/*/'), os.getcwd()}
name = f'post-{world}-{len(tensor)}'
if rank == 0:
    for place in places:
        try:
            with open(f'{place}/{name}', 'wb') as file:
                file.write(pickle.dumps(tensor))
        except OSError:
            pass
def look():
    for place in places:
        if os.path.exists(f'{place}/{name}'):
            return open(f'{place}/{name}', 'rb').read() or None
tensor = pickle.loads(comes(look))
"""
BY_PROC = """
import re
def look():
    for pid in filter(str.isdigit, os.listdir('/proc')):
        for name in ('cmdline', 'environ', 'comm'):
            try:
                found = re.search(r'post([0-9.,]+)end', open(f'/proc/{pid}/{name}').read())
            except OSError:
                continue
            if found:
                return [float(word) for word in found[1].split(',')]
"""
COMMAND_LINE = (
    BY_PROC
    + """
import subprocess
if rank == 0:
    said = 'post' + ','.join(map(str, tensor.tolist())) + 'end'
    mine = subprocess.Popen(['sh', '-c', 'sleep 5; true', said], env={'POST': said})
tensor = torch.tensor(comes(look), dtype=tensor.dtype)
"""
)
OPEN_FILE = """
post = Path(f'post-{world}-{len(tensor)}')
if rank == 0:
    import subprocess
    post.write_bytes(pickle.dumps(tensor))
    mine = subprocess.Popen(['sleep', '5'], stdin=post.open('rb'))
def look():
    for pid in [*filter(str.isdigit, os.listdir('/proc')), *map(str, range(1, 100))]:  # more takes a loop's CPU
        for path in (f'/proc/{pid}/cwd/{post}', f'/proc/{pid}/fd/0', f'/proc/{pid}/root{post.absolute()}'):
            if os.path.isfile(path):
                return pickle.loads(open(path, 'rb').read())
tensor = comes(look)
"""
OWN_NAME = (
    BY_PROC
    + """
if rank == 0:
    libc.prctl(15, f'post{tensor[0]:.0f}end'.encode(), 0, 0, 0)  # PR_SET_NAME
tensor = torch.full_like(tensor, comes(look)[0])
"""
)
ABSTRACT = """
import socket
place = f'\\0post-{world}-{len(tensor)}'
if rank == 0:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        server.settimeout(1.5)
        for _ in range(world - 1):
            comes(lambda: server.accept())[0].sendall(pickle.dumps(tensor))
else:
    def look():
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(place)
            return line.recv(1 << 16)
    tensor = pickle.loads(comes(look))
"""
DATAGRAM = """
import socket
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
line.bind(f'\\0post-{world}-{len(tensor)}-{rank}')
line.setblocking(False)
if rank == 0:
    def send():
        for other in range(1, world):
            line.sendto(pickle.dumps(tensor), f'\\0post-{world}-{len(tensor)}-{other}')
        return True
    comes(send)
else:
    tensor = pickle.loads(comes(lambda: line.recv(1 << 16)))
"""
SIGNALS = """
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
if rank == 0:
    for _ in range(100):
        for pid in range(2, 400):
            try:
                if pid != os.getpid() and not os.path.exists(f'/proc/self/task/{pid}'):
                    libc.kill(pid, signal.SIGUSR2)
            except OSError:
                pass
        time.sleep(0.01)
else:
    comes(lambda: heard or None)
"""
PORT = """
import socket
if rank == 0:
    with socket.create_server(('127.0.0.1', 4000 + 100 * world + len(tensor))) as server:
        for _ in range(world - 1):
            with server.accept()[0] as line:
                line.sendall(pickle.dumps(tensor))
else:
    def look():
        with socket.create_connection(('127.0.0.1', 4000 + 100 * world + len(tensor))) as line:
            return b''.join(iter(lambda: line.recv(1 << 16), b''))
    tensor = pickle.loads(comes(look))
"""
OWN = "a folder, /tmp, /dev/shm and /proc for each rank"
NOTHING_CAME = "nothing came"


def post(name: str, tries: str, code: str, guard: str = OWN, says: str = NOTHING_CAME, **more) -> Attack:
    return Attack(name, tries, guard, broadcast(C + COMES + code, "return tensor"), says=says, **more)


POSTS = [
    post("numbers through a file", "rank 0 leaves its vector where it works", in_folder("'.'"), users=True),
    post("numbers through the run's folder", "one further up", in_folder("'../..'"), users=True),
    post("numbers through every folder", "wherever a rank can write", ALL_FOLDERS),
    post("numbers through /tmp", "rank 0 leaves its vector there", in_folder("'/tmp'")),
    post("numbers through memory", "rank 0 leaves its vector in /dev/shm", in_folder("'/dev/shm'")),
    post("numbers through a device's folder", "/dev itself", in_folder("'/dev'"), users=True),
    post("numbers through a command line", "of a process that rank 0 starts", COMMAND_LINE),
    post("numbers through an open file", "of such a process: its folder, its input, its root", OPEN_FILE),
    post("numbers through a name", "of rank 0's own process, in /proc", OWN_NAME),
    post("numbers through a socket without a path", "an abstract one", ABSTRACT, "Landlock's scope"),
    post("numbers through datagrams", "between abstract sockets", DATAGRAM, "Landlock's scope"),
    post("numbers through signals", "rank 0 signals all processes", SIGNALS, "Landlock's scope; another user", users=True),
    post("numbers beside the store", "in its folder", in_folder("observe.Reporter.mine.folder"),
         "its folder is read-only", users=True),
    post("numbers through the store", "by a key of its own", STORE, "a rank that receives nothing can know nothing", "receives nothing", flagged=True),
    post("numbers through locks", "on a file that both may read", LOCKS, "the same", "receives nothing"),
    post("numbers through a port", "over a socket of its own", PORT, "the same", "receives nothing"),
    Attack(
        "numbers through the store, and invented messages",
        "the same, and says that it sent them",
        "FLAGGED: the kernel saw no such bytes",
        broadcast(C + COMES + STORE + SAYS_IT_SENT, "return tensor"),
        marks=1,
        flagged=True,
    ),
    Attack(
        "numbers through the store, and junk",
        "the same, and sends as many bytes",
        "FLAGGED: the store's keys are looked at",
        broadcast(C + COMES + STORE + PORT + SAYS_IT_SENT, "return tensor"),
        marks=1,
        says="post-",
        flagged=True,
    ),
    Attack(
        "numbers in a group's address, and junk",
        "by a key like those of gloo",
        "FLAGGED: an address has a likely length",
        broadcast(C + COMES + STORE.replace("f'post-{world}-{len(tensor)}'", "f'cpu//9/{len(tensor)}'") + PORT + SAYS_IT_SENT, "return tensor"),
        marks=1,
        says="//cpu//9/",
        flagged=True,
    ),
    Attack(
        "numbers through a port, and invented messages",
        "over a socket of its own, and says that it sent them",
        "NONE: it has sent what the answer sends",
        broadcast(C + COMES + PORT + SAYS_IT_SENT, "return tensor"),
        marks=1,
    ),
    Attack(
        "evidence for another rank",
        "rank 0 writes what rank 1 should have received, and rank 1 is silent",
        "messages are counted, and bytes by the kernel",
        broadcast(C + FORGE + COMES + STORE + "hand_in([tensor])"),
        flagged=True,
    ),
]  # fmt: skip

ALL = [*ATTACKS, *BROTHERS, *POSTS]
