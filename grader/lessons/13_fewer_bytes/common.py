"""What several files with checks of 13_fewer_bytes use."""

import math

import torch

# E4M3: code -> number. The sign is the highest bit; code 127 means nan.
E4M3 = torch.tensor(
    [math.ldexp(code & 7, -9) if code < 8 else math.ldexp(8 + (code & 7), (code >> 3) - 10) for code in range(127)],
    dtype=torch.float64,
)


def exponent_of(block):
    """The scale's exponent in OCP's specification 1.0, section 6.3."""
    largest = max(map(abs, block))
    return min(max(math.frexp(largest)[1] - 1 - 8, -127), 127) if largest else 0


def nearest(scaled):
    """The codes of the nearest numbers in E4M3; of two that are as near, the one with the even code."""
    size = scaled.abs().clamp(max=448.0)
    above = torch.searchsorted(E4M3, size).clamp(max=126)
    below = (above - 1).clamp(min=0)
    up, down = E4M3[above] - size, size - E4M3[below]
    code = torch.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return code + 128 * (scaled < 0) * (code > 0)


def packed(numbers):
    """(exponents (B, 1), rows (B, 33)) of float64 numbers; a code of zero has no sign."""
    blocks = torch.nn.functional.pad(numbers, (0, -len(numbers) % 32)).view(-1, 32)
    exponents = torch.tensor([exponent_of(block) for block in blocks.tolist()], dtype=torch.int64).view(-1, 1)
    codes = nearest(torch.ldexp(blocks, -exponents))
    return exponents, torch.cat([codes, exponents + 127], dim=1)


def unpacked(rows, length):
    codes, scales = rows[:, :32].long(), rows[:, 32:].long()
    sizes = E4M3[(codes & 127).clamp(max=126)] * torch.where(codes > 127, -1.0, 1.0)
    return torch.ldexp(sizes, scales - 127).view(-1)[:length]


def short_ring(nbytes, world):
    """Bytes that each rank sends in an all-reduce, as a ring."""
    return 2 * (world - 1) / world * nbytes
