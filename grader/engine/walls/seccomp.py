"""System calls that no lesson needs, forbidden to a process and its children by libseccomp, https://libseccomp.org."""

import ctypes
import errno
import functools
import os

# seccomp.h: SCMP_ACT_… (to ERRNO the errno is added), enum scmp_compare, SCMP_FLTATR_…
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
NE, EQ, GT, MASKED_EQ = 1, 4, 6, 7
ACT_BADARCH = 2
CLONE_NEWUSER = 0x10000000  # linux/sched.h
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16  # linux/socket.h; Python has not all of them on other systems
# What could get around a wall: new namespaces (with all capabilities in them, and so mounts), memory that belongs to no
# process, other processes' memory and pace, rarely used parts of the kernel.
FORBIDDEN = (
    "unshare memfd_create memfd_secret shmget semget msgget mq_open ptrace process_vm_readv process_vm_writev"
    " pidfd_getfd kcmp setpriority ioprio_set bpf perf_event_open userfaultfd io_uring_setup keyctl add_key request_key"
).split()
ITSELF = "prlimit64 sched_setparam sched_setscheduler sched_setaffinity sched_setattr".split()


class Condition(ctypes.Structure):  # struct scmp_arg_cmp
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("masked", ctypes.c_uint64),
    ]


@functools.cache
def filter_of(services: bool) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """libseccomp and its filter, which kills a process that makes calls of another architecture, such as of 32 bits.

    `services`: permit Unix sockets, because all that it can reach are its own.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(ALLOW))
    library.seccomp_attr_set(rules, ACT_BADARCH, ctypes.c_uint32(KILL_PROCESS))

    def refuse(call: str, *conditions: tuple[int, ...], why: int = errno.EPERM) -> None:
        number = library.seccomp_syscall_resolve_name(call.encode())
        listed = (Condition * len(conditions))(*conditions)
        if library.seccomp_rule_add_array(rules, ERRNO | why, number, len(conditions), listed):
            raise OSError(f"libseccomp does not know {call}")

    for call in FORBIDDEN:
        refuse(call)
    for call in ITSELF:  # for itself alone, that is, with 0 as the first argument
        refuse(call, (0, NE, 0))
    # Its flags lie in memory, where seccomp cannot look: it is not there, and the C library takes clone instead.
    refuse("clone3", why=errno.ENOSYS)
    refuse("clone", (0, MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER))
    # Through AF_NETLINK gloo lists the interfaces. Not all others have namespaces: AF_VSOCK leads to a virtual
    # machine's host.
    allowed = {AF_INET, AF_INET6, AF_NETLINK, *([AF_UNIX] if services else [])}
    refuse("socket", (0, GT, max(allowed)))  # also with a bit above the 32 at which the kernel looks
    for family in set(range(max(allowed))) - allowed:
        refuse("socket", (0, EQ, family))
    # Over the network go streams alone, as gloo's: a datagram that nobody reads would count as sent. Of the four bits
    # of a socket's kind, SOCK_STREAM has the lowest alone.
    for family in (AF_INET, AF_INET6):
        for bit, other in ((1, 0), (2, 2), (4, 4), (8, 8)):
            refuse("socket", (0, EQ, family), (1, MASKED_EQ, bit, other))
    return library, rules


def forbid_calls(services: bool) -> None:
    """From now on, this process and its children cannot make these calls."""
    library, rules = filter_of(services)
    if failed := library.seccomp_load(rules):
        raise OSError(-failed, f"seccomp: {os.strerror(-failed)}")
