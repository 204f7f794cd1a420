"""Compares a plan's predictions for a run over five axes with one measured step: `--compare`.

One step is timed. The next is measured on every rank: the bytes of its tensors, the messages that it sends on each
axis, and how long its stages work. Then rank 0 prints a table, and saves it in the run's folder for the report.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from utils.distributed import print0
from utils.llama_sizes import hidden_width
from utils.memory import Peak, held
from utils.pipeline_flags import stages_a_rank
from utils.report.runs import COMPARED
from utils.atomic_write import write_whole

# The axes whose messages these are, where they share a group.
SENDERS = {"send": ("pp", "cp"), "alltoall": ("ep", "cp")}
WATCHED = 2  # steps before the measured one: in the first, stages agree on shapes, and state is created


class Watch(Peak):
    """While active, records the peak of live bytes, and the bytes that this rank sends on each axis (assuming ring
    algorithms for collectives).
    """

    def __init__(self, meshes: Sequence[DeviceMesh]) -> None:
        self.sent: Counter[str] = Counter()
        # For each group its axes, and how many ranks each has: axes that have all ranks share torch's own group.
        self.axes: dict[str, dict[str, int]] = {}
        for mesh in meshes:
            for axis in mesh.mesh_dim_names:
                self.axes.setdefault(mesh.get_group(axis).group_name, {})[axis] = mesh[axis].size()
        super().__init__()

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if operation.namespace in ("c10d", "_c10d_functional"):
            self.count_sent(operation, args, kwargs or {})
        return super().__torch_dispatch__(operation, types, args, kwargs)

    def count_sent(self, operation: Any, args: tuple, kwargs: dict) -> None:
        given = dict(zip((argument.name for argument in operation._schema.arguments), args)) | kwargs
        group = given.get("group_name") or given.get("process_group")
        if isinstance(group, torch.ScriptObject):
            group = dist.ProcessGroup.unbox(group).group_name
        if group not in self.axes:
            return
        name = operation._schema.name.partition("::")[2].replace("_", "")
        axes = self.axes[group]
        theirs = next((who for start, who in SENDERS.items() if name.startswith(start)), ("tp", "shard", "dp"))
        axis = next((axis for axis in theirs if axis in axes), next(iter(axes)))
        n = axes[axis]
        tensors = given.get("input_tensor", given.get("input", given.get("inputs", given.get("tensors", []))))
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        nbytes = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
        rings = {"allreduce": 2 * (n - 1) / n, "allgather": n - 1, "reducescatter": (n - 1) / n, "send": 1}
        rings["alltoall"] = (n - 1) / n  # a part stays here; where parts differ, on average
        self.sent[axis] += next((part * nbytes for start, part in rings.items() if name.startswith(start)), 0)


class Beside:
    """Measures one step of a run if args.compare is set."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: dict[str, Any],
        meshes: Sequence[DeviceMesh],
        stages: list,
        own: nn.Module,
    ) -> None:
        self.args, self.config, self.meshes, self.stages, self.own = args, config, meshes, stages, own
        mesh = meshes[0]
        self.steps, self.seconds, self.rows = 0, 0.0, []
        self.file = Path(args.out) / COMPARED
        if args.compare:
            from utils import costs, plan, this_machine  # imported here: costs are sealed until their lessons are done

            self.costs, self.plan = costs, plan
            on_gpu = mesh.device_type != "cpu"
            dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
            index = torch.accelerator.current_device_index() if on_gpu else None
            device = torch.device(mesh.device_type, index)
            self.machine = this_machine.measure(device, 8192 if on_gpu else 1024, dtype)

    @contextmanager
    def step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Enclose each step, from the forward pass to the optimizer's step."""
        self.steps += 1
        if self.steps == 1 and dist.get_rank() == 0:  # by now, the folder belongs to this run
            self.file.unlink(missing_ok=True)  # an earlier run's
        if not self.args.compare or self.steps != WATCHED + 1:
            began = time.perf_counter()
            yield
            if self.args.compare and self.steps == WATCHED:
                if self.meshes[0].device_type != "cpu":
                    torch.accelerator.synchronize()
                self.seconds = time.perf_counter() - began
            return
        spans = self.watch_stages()
        watch = Watch(self.meshes)
        watch.note(self.own.parameters())
        watch.note(value for values in optimizer.state.values() for value in values.values())
        with watch:
            yield
        kinds = held(watch, self.own.parameters(), optimizer)
        seen = {"kinds": kinds, "most": watch.most, "sent": dict(watch.sent), "spans": spans}
        self.tell(seen | {"seconds": self.seconds})

    def watch_stages(self) -> list[tuple[float, float]]:
        """A list that collects the start and end, in seconds, of all that this rank's stages do after this call."""
        spans = []

        def timed(work: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                began = time.monotonic()  # one clock for all ranks of a node
                result = work(*args, **kwargs)
                spans.append((began, time.monotonic()))
                return result

            return call

        for stage in self.stages:
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                setattr(stage, name, timed(getattr(stage, name)))
        return spans

    def tell(self, mine: dict[str, Any]) -> None:
        """Rank 0 prints predicted and measured values; measured values come from the rank with the most."""
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        model, plan = self.described()
        memory, messages = self.costs.memory(model, plan), self.costs.messages(model, plan)
        stages = [self.costs.moments(model, plan, stage)["step"] for stage in range(plan.pp)]
        most = max(ranks, key=lambda seen: sum(seen["kinds"].values()))["kinds"]
        predicted = sum(self.costs.step_time(model, plan, self.machine).values())
        self.row("a step, ms", 1000 * predicted, 1000 * max(seen["seconds"] for seen in ranks))
        for kind, name in (("weights", "weights"), ("gradients", "gradients"), ("state", "optimizer")):
            self.row(f"{kind}, bytes", max(kinds[kind] for kinds in stages), most[name])
        self.row("all at once, bytes", sum(memory.values()), max(seen["most"] for seen in ranks))
        axes = ("pp", "dp", "shard", *(["cp"] if self.args.cp > 1 else []), *(["ep"] if self.args.ep > 1 else []), "tp")
        for axis in axes:
            self.row(f"sent on {axis}, bytes", messages[axis].bytes, max(seen["sent"].get(axis, 0) for seen in ranks))
        if plan.pp > 1:  # a single stage waits for no other: the time between its passes is not a bubble
            self.row("bubble, %", 100 * self.costs.bubble(plan), 100 * idle([seen["spans"] for seen in ranks]))
        print0(f"{'a rank, at most':24} {'predicted':>14} {'measured':>14}")
        for name, guess, found in self.rows:
            print0(f"{name:24} {guess:14,.0f} {found:14,.0f}")
        if dist.get_rank() == 0:
            write_whole(self.file, json.dumps(self.rows))
        if self.meshes[0].device_type == "cpu" and len(ranks) > (cores := os.cpu_count() or 1):
            print0(f"Step and bubble are not the schedule's alone: {len(ranks)} ranks take turns on {cores} cores.")

    def row(self, name: str, predicted: float, measured: float) -> None:
        self.rows.append((name, predicted, measured))

    def described(self) -> tuple[Any, Any]:
        """This run's model and plan, as the planner describes them."""
        args, sizes = self.args, self.config
        model = self.plan.Model(
            hidden=sizes["dim"],
            layers=sizes["n_layers"],
            heads=sizes["n_heads"],
            vocabulary=sizes["vocab_size"],
            sequence=args.seq_len,
            experts=args.experts,
            active=args.top_k if args.experts else 1,
            mlp=hidden_width(args.dim) if args.kv_heads else 0,
            key_heads=args.kv_heads,
            block=args.block,
        )
        plan = self.plan.Plan(
            batch=args.batch_size,
            micro_batch=args.batch_size // (args.dp * args.shard * args.microbatches),
            dp=args.dp,
            shard=args.shard,
            fsdp=True,
            tp=args.tp,
            pp=args.pp,
            cp=args.cp,
            context=args.cp_method,
            ep=args.ep,
            reshard="none",
            schedule=args.schedule,
            chunks=stages_a_rank(args.pp, args),
            sequence_parallel="keep" if args.sequence_parallel else "off",
            recompute="full" if args.recompute else "none",
            dropout=args.dropout > 0,
            precision="sharded" if args.dtype == "bfloat16" else "float32",
            piece=self.plan.piece_on(self.meshes[0].device_type),
        )
        return model, plan


def idle(ranks: list[list[tuple[float, float]]]) -> float:
    """The average fraction of the time, from the first piece of work to the last, in which ranks wait."""
    begin = min(began for spans in ranks for began, _ in spans)
    end = max(over for spans in ranks for _, over in spans)
    busy = sum(over - began for spans in ranks for began, over in spans) / len(ranks)
    return 1 - busy / (end - begin)
