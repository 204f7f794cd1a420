"""A machine whose own name does not resolve, as in a hotel or behind a VPN: namespaces, and a name server that knows
nothing and notes what it was asked.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

NAME = "no-such-name.example"


def run(command: list[str], folder: Path, **how) -> tuple[subprocess.CompletedProcess, list[str]]:
    """What a command says there, and the names that were asked for; `folder` holds this machine's files."""
    settings, asked = folder / "resolv.conf", folder / "asked.json"
    settings.write_text("nameserver 127.0.0.1\n")
    place = ["bwrap", "--unshare-user", "--unshare-net", "--unshare-uts", "--hostname", NAME, "--dev-bind", "/", "/"]
    place += ["--ro-bind", str(settings), str(Path("/etc/resolv.conf").resolve()), "--cap-add", "CAP_NET_BIND_SERVICE"]
    done = subprocess.run(
        [*place, sys.executable, __file__, str(asked), *command],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **how,
    )
    return done, json.loads(asked.read_text()) if asked.exists() else []


def missing(folder: Path) -> str:
    """Why there can be no such machine here; "" if there can."""
    if not shutil.which("bwrap"):
        return "bubblewrap not found"
    done, asked = run([sys.executable, "-c", "import socket; socket.getaddrinfo(socket.gethostname(), 1)"], folder)
    return "" if done.returncode == 1 and any(NAME in each for each in asked) else done.stderr


def serve(server: socket.socket, asked: list[str]) -> None:
    """Answer each question with: there is no such name (RFC 1035, 4.1)."""
    while True:
        question, sender = server.recvfrom(2048)
        server.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], sender)
        labels, rest = [], question[12:]
        while rest and rest[0]:
            labels.append(rest[1 : 1 + rest[0]].decode())
            rest = rest[1 + rest[0] :]
        asked.append(".".join(labels))


if __name__ == "__main__":
    names: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 53))
        threading.Thread(target=serve, args=(port, names), daemon=True).start()
        code = subprocess.run(sys.argv[2:]).returncode
        Path(sys.argv[1]).write_text(json.dumps(names))
        sys.stdout.flush()
        os._exit(code)
