"""Everything private of torch that the course uses, with the first release that has it.

PyTorch promises nothing about a name with an underscore: a release may move it. So no other module imports one, and
`tests/test_private.py` looks for each of NAMES in the torch that runs: a release that moves one fails there, by name.
What has a public way is not here. Names that students type themselves (TYPED) stand in their scripts and notebooks.
"""

import importlib
import sys
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _world
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves as tree_leaves

OLDEST = "2.8"  # or earlier: what every release has that the course runs on

# Imported, or read as a module's attribute.
NAMES = {
    # How a tensor lies in memory.
    "torch._prims_common.suggest_memory_format": OLDEST,
    # Whether a storage is still alive.
    "torch.UntypedStorage._new_with_weak_ptr": OLDEST,
    # The dispatcher: every collective passes it, DDP's and FSDP's as well.
    "torch._C.DispatchKey": OLDEST,
    "torch._C._dispatch_keyset_full_after": OLDEST,
    "torch._C._dispatch_get_all_op_names": OLDEST,
    "torch._C.DisableTorchFunction": OLDEST,
    "torch.utils._python_dispatch.TorchDispatchMode": OLDEST,
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass": OLDEST,
    "torch.utils._python_dispatch._disable_current_modes": OLDEST,
    "torch.utils._pytree.tree_leaves": OLDEST,
    # Where new tensors go, for ranks on GPUs.
    "torch.overrides._get_current_function_mode_stack": OLDEST,
    "torch.utils._device.DeviceContext": OLDEST,
    "torch.utils._device._device_constructors": OLDEST,
    # Process groups.
    "torch.distributed.distributed_c10d._get_default_store": OLDEST,
    "torch.distributed.distributed_c10d._world.pg_group_ranks": OLDEST,
    "torch.distributed.rendezvous._rendezvous_handlers": OLDEST,
    # DTensor.
    "torch.distributed.tensor.debug._clear_sharding_prop_cache": "2.11",
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": OLDEST,
    "torch.distributed.tensor.placement_types._StridedShard": OLDEST,
    # What may stand in a sharded checkpoint's pickles.
    "torch.serialization._get_layout": OLDEST,
    "torch.distributed.checkpoint.filesystem._StorageInfo": OLDEST,
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING": OLDEST,
    # How a save's ranks agree; a check lets it fail.
    "torch.distributed.checkpoint.utils._DistWrapper": OLDEST,
    # A processor's units for bfloat16.
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": OLDEST,
    "torch.cpu._is_amx_tile_supported": OLDEST,
    "torch.cpu._is_avx512_bf16_supported": OLDEST,
    # What a --record run times of a pipeline.
    "torch.distributed.pipelining.stage._PipelineStageBase": OLDEST,
    "torch.distributed.pipelining.schedules._PipelineSchedule._maybe_compute_loss": OLDEST,
    # Hooks on all modules.
    "torch.nn.modules.module._global_forward_hooks": OLDEST,
    # Frames in a stack, by their names.
    "torch.autograd.graph._engine_run_backward": OLDEST,
    "torch.distributed.checkpoint.state_dict._get_model_state_dict": OLDEST,
    # Only to be faster, see `load_early` and `forget_stacks`.
    "torch._dynamo.trace_rules.clear_lru_cache": OLDEST,
    "torch._subclasses.fake_tensor": OLDEST,
}
TYPED = {
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper": OLDEST,
    "torch.distributed.pipelining.schedules._PipelineSchedule": OLDEST,
    "torch._C._distributed_c10d._dump_fr_trace": OLDEST,
}
# Used where their objects are: `_schema` of an operation, `_version` of a tensor, `_local_tensor` of a DTensor,
# `_source_rank` of a Work, `_get_backend` of a group, `_input_metadata` of a node of autograd; and of FSDP2's objects,
# which are found by their classes' names, `_unsharded_param` and `_all_gather_result`. All are in 2.8 to 2.15.


def default_store() -> dist.Store:
    """The store at which the ranks of the default process group met."""
    return _get_default_store()


def ranks_of_groups() -> dict[Any, dict[int, int]]:
    """Of each process group: global rank -> rank in the group. Of a group without this rank, the key is a number."""
    return _world.pg_group_ranks


def rendezvous_handlers() -> dict[str, Any]:
    """Scheme of an init_method -> what meets there. The public `register_rendezvous_handler` replaces none."""
    return _rendezvous_handlers


def devices_around() -> list[torch.device]:
    """The devices of the `with torch.device(…)` around a call, outermost first."""
    return [mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]


def constructors() -> set[str]:
    """The names of the functions that make a tensor, and take a device."""
    return {function.__name__ for function in _device_constructors()}


without_modes = _disable_current_modes  # a context in which no mode sees an operation


def dispatch_key(name: str) -> tuple[Any, Any]:
    """A key of the dispatcher, and the set of those below it."""
    key = getattr(torch._C.DispatchKey, name)
    return key, torch._C._dispatch_keyset_full_after(key)


def operations(namespace: str) -> list[str]:
    """The full names of all operations of the dispatcher in a namespace."""
    return [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{namespace}::")]


def without_overrides() -> Any:
    """A context in which a subclass of Tensor does not see what is asked of it."""
    return torch._C.DisableTorchFunction()


def storage_of(ref: StorageWeakRef) -> torch.UntypedStorage | None:
    """The storage behind a weak reference; None if it is gone."""
    return torch.UntypedStorage._new_with_weak_ptr(ref.cdata)


def memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The format in which a tensor lies in memory, or which comes closest."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


def forget_layouts() -> None:
    """Empty the cache of DTensor's layouts: they name process groups, which may have ended since."""
    from torch.distributed.tensor import DTensor, debug

    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()
    else:  # below 2.11 there is this cache alone
        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()


def told_shape(part: Any) -> tuple[int, ...]:
    """The shape that torch's checkpoints assume for this rank's part of a DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # here: it takes a second

    return tuple(compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)[0])


def is_strided(placement: Any) -> bool:
    """Whether a DTensor's placement cuts what another axis of the mesh has cut already."""
    from torch.distributed.tensor.placement_types import _StridedShard  # here: it takes a second

    return isinstance(placement, _StridedShard)


def memory_formats() -> Any:
    """The enumeration of memory formats in a sharded checkpoint's index."""
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING  # here: it takes a second

    return _MEM_FORMAT_ENCODING


def read_newer_indices() -> None:
    """Let this torch read the index of a sharded checkpoint that 2.15 or a newer one has written.

    2.15 pickles a sixth property of each tensor, its strides, and 2.14 unpacks five. Reading needs no strides: no
    reader of torch.distributed.checkpoint looks at them, in 2.15 either.
    """
    metadata = sys.modules.get("torch.distributed.checkpoint.metadata")  # a script without sharded checkpoints has none
    if metadata is None or "strides" in metadata.TensorProperties.__dataclass_fields__:
        return
    five = metadata.TensorProperties.__setstate__
    if five.__name__ == "__setstate__":  # not yet replaced
        metadata.TensorProperties.__setstate__ = lambda properties, state: five(properties, state[:5])


def onednn_takes_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_amx() -> bool:
    return torch.cpu._is_amx_tile_supported()


def has_avx512_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported()


def load_early() -> None:
    """Load what torch would load late, on each rank: at its first observed operation, or when something is profiled."""
    for name in (
        "torch._dynamo",  # over a second
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "torch.distributed.checkpoint._fsspec_filesystem",
        "torch.distributed.tensor.debug",  # `forget_layouts` needs it, in each process that is called twice
        "torch.profiler._cupti_monitor",  # 2.13 alone has it
    ):
        with suppress(ImportError):
            importlib.import_module(name)


def forget_rules() -> None:
    """Empty caches that each `init_process_group` empties: full ones would be copied for it, page by page, on each
    rank.
    """
    torch._dynamo.trace_rules.clear_lru_cache()


def noting_stacks() -> tuple[Any, ...]:
    """Modules that note a stack now and then, for torch's own messages alone: at each `torch.manual_seed`, once for
    each kind of GPU, and whenever DTensor works out the shape of a result.
    """
    return torch.cuda, torch.xpu, torch.mtia, torch._subclasses.fake_tensor
