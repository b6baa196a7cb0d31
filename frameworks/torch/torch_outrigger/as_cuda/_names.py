"""The names of `torch.cuda`, and what each becomes. docs/as-cuda.md has the same table; a test compares both with torch.

A name is ours (the one of the device's module), made here, torch's own still, or refused with a reason.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import torch

from .. import _device
from .._lifetime import DeviceLike, _lazy_init, device_index, device_type
from ..graphs import Graph
from ._seen import ours

CAPABILITY = (8, 0)
"""The answer of `get_device_capability` for every device: one pair, as programs choose bfloat16 and attention by it."""

_HERE = torch.device(device_type())

OURS = (
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph_pool_handle",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "power_draw",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "temperature",
    "use_mem_pool",
    "utilization",
)
"""Functions and classes of the device's module, `torch.outrigger`. Sensors refuse themselves there."""

PARTS = ("graphs", "memory", "nvtx", "random", "streams")
"""Modules of `torch.cuda` whose names are those of the device's module; torch's modules stay where they are."""

KEPT = {
    "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage FloatStorage "
    "HalfStorage IntStorage LongStorage ShortStorage": "names of dtypes in checkpoints",
    "amp": "asks `torch.amp`, which is redirected",
    "CudaError DeferredCudaCallError cudaStatus": "classes that a program may catch or compare; nothing raises them",
    "has_half has_magma": "what torch was built with",
    "gds graph_annotations green_contexts jiterator nccl profiler sparse tunable": "modules of NVIDIA's platform; using them is "
    "torch's own error",
}
"""Names that stay torch's own, and why."""

REFUSED = {
    "CUDAPluggableAllocator change_current_allocator": "the driver is what allocates",
    "caching_allocator_disabled caching_allocator_enable": "streams and graphs rely on the cache",
    "GreenContext": "a part of NVIDIA's platform",
    "check_error cudart": "the runtime library of CUDA",
    "current_blas_handle current_solver_handle": "a handle of NVIDIA's libraries",
    "export_dot export_graph_data": "the graph is not one of CUDA; `CUDAGraph.debug_dump` writes it",
    "list_gpu_processes": "a driver does not tell which processes use its device",
}
"""Names that are refused where they are used, and why."""


# ---- what decides for CUDA -------------------------------------------------------------------------


def _asked_by_torch() -> bool:
    """Whether the function that calls this was called by a module of torch or Triton, which choose code for CUDA by the answer.

    Dynamo asks for the program that it traces, and torchrun for its `--nproc-per-node=gpu`.
    """
    name = sys._getframe(2).f_globals.get("__name__", "")
    if name.partition(".")[0] not in ("torch", "triton"):
        return False
    return not name.startswith("torch._dynamo.variables.") and name != "torch.distributed.run"


def _no_cuda() -> AssertionError:
    # The error of a torch without CUDA, which its callers expect.
    return AssertionError("Torch has no CUDA device: torch_outrigger.as_cuda answers programs, not torch")


def is_available() -> bool:
    """Whether there is a device. Torch's own modules are told that there is no CUDA."""
    return not _asked_by_torch() and _device.is_available()


def device_count() -> int:
    """The number of devices; none of CUDA for torch's own modules."""
    return 0 if _asked_by_torch() else _device.device_count()


def is_initialized() -> bool:
    """Whether the runtime has started; never that of CUDA for torch's own modules."""
    return not _asked_by_torch() and _device.is_initialized()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """As `torch.outrigger.is_bf16_supported`."""
    return not _asked_by_torch() and _device.is_bf16_supported(including_emulation)


def is_tf32_supported() -> bool:
    """False: a driver does not tell how it multiplies."""
    return False


class _Properties:
    """A device as `torch.cuda` describes one."""

    def __init__(self, index: int) -> None:
        found = _device.get_device_properties(index)
        self.name = found.name
        self.major, self.minor = CAPABILITY
        self.total_memory = found.total_memory
        self.multi_processor_count = max(1, found.compute_units)
        self.is_integrated = int(found.host_visible)
        self.is_multi_gpu_board = 0
        for name in ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id"):
            if (value := getattr(found, name)) is not None:
                setattr(self, name, value)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{device_type()} devices have no property {name}: a driver does not tell it")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"_CudaDeviceProperties({values})"


def get_device_properties(device: DeviceLike = None) -> _Properties:
    """The properties that a device of CUDA has and a driver tells."""
    if _asked_by_torch():
        raise _no_cuda()
    return _Properties(device_index(device))


def get_device_name(device: DeviceLike = None) -> str:
    """The device's name."""
    if _asked_by_torch():
        raise _no_cuda()
    return _device.get_device_name(device)


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """`CAPABILITY`."""
    if _asked_by_torch():
        raise _no_cuda()
    device_index(device)
    return CAPABILITY


def get_arch_list() -> list[str]:
    """Empty: torch is compiled for no such device."""
    return []


def get_gencode_flags() -> str:
    """Empty: torch is compiled for no such device."""
    return ""


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """A device's index, as Dynamo and libraries ask for it."""
    if allow_cpu and (device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")):
        return -1
    if device is None and not optional:
        raise ValueError("expected a torch.device with a specified index or an integer, but got None")
    return device_index(device)


# ---- classes ---------------------------------------------------------------------------------------


class _OfTorch(type):
    """A class that makes objects of one of torch's, and takes all of these that are of our device for its own."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls._made) and value.device.type == device_type()

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls._make(*arguments, **keywords)


class Stream(metaclass=_OfTorch):
    """`torch.cuda.Stream`: a `torch.Stream` of the device."""

    _made = torch.Stream

    @staticmethod
    def _make(device: DeviceLike = None, priority: int = 0, **keywords: Any) -> torch.Stream:
        if keywords:
            return torch.Stream(priority=priority, **keywords)
        return torch.Stream(device=torch.device(device_type(), device_index(device)), priority=priority)


class Event(metaclass=_OfTorch):
    """`torch.cuda.Event`: a `torch.Event` of the device."""

    _made = torch.Event

    @staticmethod
    def _make(
        enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> torch.Event:
        if external:
            raise NotImplementedError("torch.cuda.Event(external=True): an event of a graph that others wait for is not there")
        if not (enable_timing or blocking or interprocess):
            return torch.Event(_HERE)
        return torch.Event(_HERE, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class StreamContext(contextlib.AbstractContextManager[Any]):
    """`torch.cuda.StreamContext`: makes a stream the current one. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exception)


class CUDAGraph(Graph):
    """`torch.cuda.CUDAGraph`: a graph of `torch_outrigger.graphs`."""

    def enable_debug_mode(self) -> None:
        """Nothing to do: a graph can always be dumped."""

    def debug_dump(self, debug_path: str) -> None:
        """Writes the graph; a path that ends in .dot, .svg or .json says how."""
        self.dump(debug_path)

    def raw_cuda_graph(self) -> NoReturn:
        """Refused: there is none."""
        raise NotImplementedError("raw_cuda_graph: the graph is not one of CUDA")


class graph(_device.graph):
    """`torch.cuda.graph`: records what its body does."""

    def __init__(
        self,
        cuda_graph: Graph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
        **keywords: Any,
    ) -> None:
        asked = [name for name, value in keywords.items() if value]
        if asked:
            raise NotImplementedError(f"torch.cuda.graph({asked[0]}=...) is a part of NVIDIA's platform")
        super().__init__(cuda_graph, pool, stream, capture_error_mode)


class _Generators(Sequence[torch.Generator]):
    """The default generators, looked up when they are used: to list them must not start the runtime."""

    def __len__(self) -> int:
        return _device.device_count()

    def __getitem__(self, index: Any) -> Any:
        return _device.default_generators[index]


def _legacy(name: str) -> type:
    """`torch.cuda.FloatTensor` and its like."""

    class _OfDtype(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.device.type == device_type() and value.dtype == cls.dtype

    def make(cls: type, *arguments: Any) -> torch.Tensor:
        return getattr(torch, name)(*arguments).to(device_type())

    of_cpu = getattr(torch, name)
    made = _OfDtype(name, (), {"__new__": make, "dtype": of_cpu.dtype, "__module__": "torch.cuda"})
    made.__doc__ = f"`torch.cuda.{name}`: tensors of {of_cpu.dtype} on the device."
    return made


LEGACY = tuple(f"{kind}Tensor" for kind in "BFloat16 Bool Byte Char Double Float Half Int Long Short".split())

MADE: dict[str, Any] = {
    "CUDAGraph": CUDAGraph,
    "Event": Event,
    "ExternalStream": _device.ExternalStream,
    "Stream": Stream,
    "StreamContext": StreamContext,
    "default_generators": _Generators(),
    "device_count": device_count,
    "get_arch_list": get_arch_list,
    "get_device_capability": get_device_capability,
    "get_device_name": get_device_name,
    "get_device_properties": get_device_properties,
    "get_gencode_flags": get_gencode_flags,
    "graph": graph,
    "is_available": is_available,
    "is_bf16_supported": is_bf16_supported,
    "is_initialized": is_initialized,
    "is_tf32_supported": is_tf32_supported,
    "max_memory_cached": _device.max_memory_reserved,
    "memory_cached": _device.memory_reserved,
    "reset_max_memory_allocated": _device.reset_peak_memory_stats,
    "reset_max_memory_cached": _device.reset_peak_memory_stats,
    **{name: _legacy(name) for name in LEGACY},
}
"""Names that are made here, as `torch.cuda` has another form of them than the device's module, or their answer decides."""

PRIVATE: dict[str, Any] = {
    "_exchange_device": torch._C._accelerator_exchangeDevice,
    "_get_device_index": _get_device_index,
    "_lazy_init": _lazy_init,
    "_maybe_exchange_device": torch._C._accelerator_maybeExchangeDevice,
}
"""Functions that torch calls where a program has named CUDA."""


def _refusal(name: str, reason: str) -> type:
    def refuse(cls: type, *_arguments: Any, **_keywords: Any) -> NoReturn:
        raise NotImplementedError(f"torch.cuda.{name} on {device_type()}: {reason}")

    return type(name, (), {"__new__": refuse, "__module__": "torch.cuda", "__doc__": f"Refused: {reason}."})


def replacements() -> dict[tuple[ModuleType, str], Any]:
    """The new members of `torch.cuda` and its parts, by their places."""
    wanted = {name: getattr(_device, name) for name in OURS} | MADE
    wanted |= {name: _refusal(name, reason) for names, reason in REFUSED.items() for name in names.split()}
    found: dict[tuple[ModuleType, str], Any] = {}
    for name, value in wanted.items():
        # An older torch has some of them not.
        if hasattr(torch.cuda, name):
            found[torch.cuda, name] = value
    for part in PARTS:
        theirs, own = getattr(torch.cuda, part), getattr(_device, part, None)
        for name in dir(theirs):
            value = wanted.get(name, getattr(own, name, None) if own is not None else None)
            is_theirs = getattr(getattr(theirs, name), "__module__", theirs.__name__) == theirs.__name__
            if value is not None and is_theirs and not name.startswith("__") and not isinstance(value, ModuleType):
                found[theirs, name] = value
    for name, value in PRIVATE.items():
        found[torch.cuda, name] = value
    return found


def moved(device: Any) -> Any:
    """A device, or the name of one or of its type, with ours for CUDA; anything else as it is."""
    if isinstance(device, torch.device):
        return ours(device)
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        return device_type() + device[4:]
    return device
