"""The network interfaces of this machine, and the ones that gloo and NCCL are told to use."""

import ipaddress
import os
import socket
import sys

import psutil

GLOO, NCCL = NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def addresses() -> dict[str, str]:
    """The IPv4 address of each network interface that is up."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: each.address
        for name, found in psutil.net_if_addrs().items()
        for each in found
        if each.family == socket.AF_INET and name in up
    }


def unknown(name: str, value: str, there: dict[str, str]) -> str:
    """What is wrong with a variable's value on a node with these interfaces; "" if one of them is meant."""
    wanted = value.lstrip("=").split(",")
    prefixes = name == NCCL  # a prefix is enough for NCCL, and not for gloo
    if value.startswith("^") or any(has == one or prefixes and has.startswith(one) for has in there for one in wanted):
        return ""
    has = ", ".join(f"{each} ({address})" for each, address in there.items())
    return f"{name}={value} names no interface that is up; it has {has}"


def stay_here(alone: bool) -> None:
    """Ranks that meet at a loopback address are all on this machine: let gloo use loopback, unless it is told what to
    use. Otherwise gloo looks up this machine's own name, which may not resolve.

    `alone`: there is one process, which needs no network, so what the environment names need not exist.
    """
    env = os.environ
    if alone:
        for name in NAMES:
            if name in env and unknown(name, env[name], addresses()):
                env[name] = LOOPBACK
    if is_loopback(env["MASTER_ADDR"]):
        env.setdefault(GLOO, LOOPBACK)


def here() -> dict[str, str]:
    """What the environment of ranks on this machine alone has to say: gloo uses loopback, and so does NCCL where it is
    told an interface that does not exist.
    """
    lost = unknown(NCCL, os.environ.get(NCCL, "^"), addresses())
    return {GLOO: LOOPBACK} | ({NCCL: LOOPBACK} if lost else {})


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
