"""System calls that no lesson needs, forbidden by seccomp to a process and its children."""

import ctypes
import errno
import os
import struct
import sys

# System calls that no lesson needs and that could get around a wall: new namespaces (with all capabilities in them, and
# so mounts), memory that belongs to no process, other processes' memory and pace, rarely used parts of the kernel.
# seccomp answers them with EPERM.
X86, ARM = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64 of linux/audit.h
FORBIDDEN = {  # name: its number on x86_64 (asm/unistd_64.h) and on aarch64 (asm-generic/unistd.h)
    "unshare": (272, 97),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
}
CLONE = (56, 220)
CLONE3 = (
    435  # its flags lie in memory, where seccomp cannot look: it is not there, and the C library takes clone instead
)
CLONE_NEWUSER = 0x10000000
SOCKET = (41, 198)
ITSELF = {  # a process may call these for itself alone, with 0 as the first argument
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
# Permitted sockets: AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK, through which gloo lists the interfaces. Not all others
# have namespaces: AF_VSOCK leads to a virtual machine's host.
FAMILIES = AF_UNIX, _, _, AF_NETLINK = (1, 2, 10, 16)
SOCK_STREAM = 1
PR_SET_SECCOMP, FILTER = 22, 2
# BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K of linux/bpf_common.h
LOAD, AND, EQUAL, ANY_BIT, RETURN = (0x20, 0x54, 0x15, 0x45, 0x06)


ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # SECCOMP_RET_…; REFUSE | errno


def forbid_calls(libc: ctypes.CDLL, services: bool) -> None:
    """From now on, this process and its children cannot make these calls. Has no effect on other processor
    architectures.

    `services`: permit Unix sockets, because all that it can reach are its own.
    """
    machine = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
    if sys.platform != "linux" or machine is None:
        return
    # struct seccomp_data: the call's number at 0, the architecture at 4, the first argument at 16
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, (X86, ARM)[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    if machine == 0:
        # BPF_JMP|JGE|K: the same calls by their x32 numbers
        program += [(0x35, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]
    for numbers in FORBIDDEN.values():
        program += [(EQUAL, 0, 1, numbers[machine]), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    program += [
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
        (EQUAL, 0, 3, CLONE[machine]),
        (LOAD, 0, 0, 16),
        (ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
    ]
    # Without `services`, no sockets by which it could use those of this machine.
    for number, allowed in (*((call, (0,)) for call in ITSELF.values()), (SOCKET, FAMILIES[not services :])):
        program += [
            (LOAD, 0, 0, 0),
            (EQUAL, 0, len(allowed) + 2, number[machine]),
            (LOAD, 0, 0, 16),
            *((EQUAL, len(allowed) - n, 0, value) for n, value in enumerate(allowed)),
            (RETURN, 0, 0, REFUSE | errno.EPERM),
        ]
    # Over the network go streams alone, as gloo's: a datagram that nobody reads would count as sent.
    program += [
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 7, SOCKET[machine]),
        (LOAD, 0, 0, 16),
        (EQUAL, 5, 0, AF_UNIX),
        (EQUAL, 4, 0, AF_NETLINK),
        (LOAD, 0, 0, 24),
        (AND, 0, 0, 0xF),  # without SOCK_NONBLOCK and SOCK_CLOEXEC
        (EQUAL, 1, 0, SOCK_STREAM),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    text = ctypes.create_string_buffer(code, len(code))
    if libc.prctl(PR_SET_SECCOMP, FILTER, struct.pack("HxxxxxxP", len(program), ctypes.addressof(text)), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
