"""Messages and collectives that have started but were not waited for.

With `merciless_messages`, each message behaves in the worst permitted way: it arrives at its wait and no earlier, and a
write before that is reported.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from grader.engine.inside import on_gpu


@dataclass
class PendingMessage:
    """A message that this rank sends or receives and has not waited for."""

    number: int
    tensor: torch.Tensor
    any_source: bool
    arrives_in: torch.Tensor | None = None  # the tensor it is received into, until the wait
    content: bytes = b""  # the tensor to send
    written_at: list | None = None  # the line that wrote to it before it completed
    shared: bool = False  # whether its memory was given to a later message, too, before it was over
    version: int = 0  # of the tensor, when it was last known not to have changed

    def changed(self) -> bool:
        return self.shared or bool(self.content) and content(self.tensor) != self.content

    def touched(self) -> bool:
        """Whether it was written to since then; a quick test, which misses writes that torch does not see."""
        before, self.version = self.version, versions([self.tensor])
        return before != self.version and self.changed()

    @property
    def about(self) -> dict:
        return {"of": self.number}


@dataclass
class PendingCollective:
    """A collective that this rank called through `dist` and has not waited for."""

    number: int
    tensors: list[torch.Tensor]
    arrive_in: list[torch.Tensor]  # tensors reduced or broadcast in place of these, until the wait
    contents: list[bytes]  # of the tensors when it began
    written_at: list | None = None  # the line that wrote to one of them before it completed
    version: int = 0  # see PendingMessage

    def changed(self) -> bool:
        return [content(tensor) for tensor in self.tensors] != self.contents

    def touched(self) -> bool:
        """See PendingMessage."""
        before, self.version = self.version, versions(self.tensors)
        return before != self.version and self.changed()

    @property
    def about(self) -> dict:
        return {"work": self.number}


def watch_waits(reporter: Any) -> None:
    plain = c10d.Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        call = reporter.in_flight.get(work)
        about = call.about if call else {}
        if work in reporter.over:
            reporter.say(e="again", of=reporter.over[work], where=reporter.where())
        reporter.say(e="wait", **about)
        try:
            answer = plain(work, *args, **kwargs)
            if reporter.on_gpu:
                on_gpu.settle()
            if call:
                arrive(reporter, work, about)
            return answer
        finally:
            reporter.say(e="done", **about)

    take = c10d.Work.get_future

    def get_future(work: Any) -> Any:
        call = reporter.in_flight.get(work)
        if isinstance(call, PendingCollective):
            if reporter.merciless:
                plain(work)
            arrive(reporter, work, call.about)
            reporter.say(e="future", **call.about)
            if call.arrive_in:  # the result is complete, and in the tensors that the caller knows
                future = torch.futures.Future()
                future.set_result(call.tensors)
                return future
        return take(work)

    c10d.Work.wait, c10d.Work.get_future = wait, get_future


def depart(reporter: Any, event: dict, name: str, given: dict) -> PendingMessage:
    """Called before a message is sent or received, if necessary through a hidden tensor; a GPU's message goes through
    host memory.
    """
    tensor = given["tensors"][0]
    message = PendingMessage(event["id"], tensor, any_source=name == "recv_any_source_")
    if reporter.merciless and name == "send":
        message.content, message.version = content(tensor), versions([tensor])
    if name == "send" and reporter.host is not None:
        given["tensors"] = [tensor.detach().to("cpu", copy=True)]
    elif name != "send" and (reporter.merciless or reporter.host is not None):
        message.arrives_in = torch.empty_like(tensor, device="cpu", requires_grad=False)
        given["tensors"] = [message.arrives_in]
    if reporter.merciless:
        watch_overlaps(reporter, message)
    watch_writes(reporter)
    return message


def watch_overlaps(reporter: Any, message: PendingMessage) -> None:
    """Note whether this message shares memory with an earlier one in flight, and one of them is received: in whichever
    order they are waited for, their numbers may be mixed.
    """
    received = message.arrives_in is not None
    for other in reporter.in_flight.values():
        if isinstance(other, PendingMessage) and (received or other.arrives_in is not None):
            if overlap(message.tensor, other.tensor):
                other.shared = True
                other.written_at = other.written_at or reporter.where()


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors, contiguous as messages are, share memory."""
    if not one.numel() or not other.numel() or one.device != other.device:
        return False
    (first, length), (second, other_length) = ((t.data_ptr(), t.numel() * t.element_size()) for t in (one, other))
    return first < second + other_length and second < first + length


def arrive(reporter: Any, work: dist.Work, about: dict) -> None:
    """Called after a message or a collective was waited for."""
    message = reporter.in_flight.pop(work)
    if not reporter.in_flight:
        sys.settrace(None)
    if isinstance(message, PendingCollective):
        finish(reporter, message)
        return
    reporter.over[work] = message.number
    if message.any_source:
        about["source"] = work._source_rank()
    if message.changed():
        reporter.say(e="changed", where=message.written_at, **message.about)
    if message.arrives_in is not None:
        message.tensor.detach().copy_(message.arrives_in)


def finish(reporter: Any, call: PendingCollective) -> None:
    """Called when a collective is complete: copy its hidden results to where they can be seen."""
    if call.changed():
        reporter.say(e="changed", where=call.written_at, **call.about)
    for tensor, result in zip(call.tensors, call.arrive_in):
        tensor.detach().copy_(result)


def watch_writes(reporter: Any) -> None:
    """Until nothing is in flight any more, test before each line of the student's code whether the previous line wrote
    to a tensor in flight.
    """
    if not reporter.merciless or sys.gettrace() is not None:
        return
    last: list[list] = [reporter.where()]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in reporter.units:
            return None
        if event == "line":
            for pending in reporter.in_flight.values():
                if pending.written_at is None and pending.touched():
                    pending.written_at = last[0]
            last[0] = [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name]
        return trace

    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in reporter.units:
            frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)


IN_PLACE = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")


def begin(reporter: Any, event: dict, name: str, given: dict) -> PendingCollective:
    """Called before a collective starts, on hidden tensors if necessary."""
    call = PendingCollective(event["work"], [], [], [])
    if reporter.merciless and name in IN_PLACE:
        call.tensors = given["tensors"]
        call.contents, call.version = [content(tensor) for tensor in call.tensors], versions(call.tensors)
        call.arrive_in = given["tensors"] = [tensor.detach().clone() for tensor in call.tensors]
        watch_writes(reporter)
    return call


def versions(tensors: list[torch.Tensor]) -> int:
    """How often torch has written into these tensors, or into views of them."""
    return sum(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def content(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, so that a NaN equals itself."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
