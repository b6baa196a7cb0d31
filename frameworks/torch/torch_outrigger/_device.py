"""`torch.outrigger`, or `torch.` and a vendor's name: the device's module, as `torch.cuda` is CUDA's.

It must never start the runtime when it is imported: `_lazy_init` does, at the first use of a device.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import torch

from . import _C, _external, _storage, _vendor, graphs, memory, nvtx
from . import _random as random
from ._diagnose import diagnose
from ._lifetime import (
    DeviceLike,
    _is_in_bad_fork,
    _lazy_init,
    device_count,
    device_index,
    device_type,
    is_initialized,
)
from ._random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from ._runtime import (
    MemoryObserver,
    Observation,
    fallback_mode,
    fallback_report,
    get_sync_debug_mode,
    host_view,
    ipc_collect,
    operator_report,
    load_driver,
    load_report,
    observe,
    reset_fallback_report,
    timed_operators,
    set_fallback_mode,
    set_sync_debug_mode,
    set_threads,
    trace,
)
from .amp import module_of as _module_of
from .graphs import Graph, graph, graph_pool_handle, is_current_stream_capturing, make_graphed_callables
from .memory import (
    MemPool,
    attach_out_of_memory_observer,
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "ExternalStream",
    "Graph",
    "MemPool",
    "MemoryObserver",
    "Observation",
    "OutOfMemoryError",
    "Stream",
    "amp",
    "attach_out_of_memory_observer",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "diagnose",
    "empty_cache",
    "fallback_mode",
    "fallback_report",
    "operator_report",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "graphs",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "host_view",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "load_driver",
    "load_report",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "nvtx",
    "observe",
    "power_draw",
    "random",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_fallback_report",
    "timed_operators",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "set_threads",
    "stream",
    "synchronize",
    "temperature",
    "trace",
    "use_mem_pool",
    "utilization",
]

Stream = torch.Stream
Event = torch.Event
OutOfMemoryError = torch.OutOfMemoryError
ExternalStream = _external.stream_class(device_type(), torch._C._autograd.DeviceType.PrivateUse1.value)

amp = _module_of(device_type())

# torch.load and TypedStorage look for `torch.outrigger.FloatStorage` and its like.
globals().update(_storage.storage_classes(f"torch.{device_type()}"))

def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return _default_generators()
    if name == "_initialized":
        # The name by which torch.utils.checkpoint asks before it saves and restores the device's random state.
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _get_generator(device: torch.device) -> torch.Generator:
    """A device's default generator, as torch's compiler asks for it."""
    return _C.default_generator(device_index(device))


def _default_generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device. They are looked up each time, because drivers can add devices."""
    _lazy_init()
    return tuple(_C.default_generator(index) for index in range(device_count()))


# ---- devices ---------------------------------------------------------------------------------------


def init() -> None:
    """Starts the runtime now instead of at the first use. If there is no device, RuntimeError says why."""
    _lazy_init()


def is_available() -> bool:
    """Whether there is a device that can be used from this process."""
    return device_count() > 0


def current_device() -> int:
    """The index of this thread's current device."""
    _lazy_init()
    return torch.accelerator.current_device_index()


def set_device(device: DeviceLike) -> None:
    """Makes a device this thread's current one."""
    torch.accelerator.set_device_index(device_index(device))


class device(contextlib.ContextDecorator):
    """Makes a device the current one within the context. None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = None if device is None else device_index(device)
        self._previous: list[int] = []

    def __enter__(self) -> None:
        if self.idx is not None:
            self._previous.append(torch._C._accelerator_exchangeDevice(self.idx))

    def __exit__(self, *_exception: object) -> None:
        if self.idx is not None:
            torch._C._accelerator_maybeExchangeDevice(self._previous.pop())


class device_of(device):
    """Makes the device of a tensor or storage the current one. A device of another type changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == device_type() else None)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The properties of a device."""

    name: str
    vendor: str
    driver: str
    driver_version: str
    total_memory: int
    """Bytes of memory."""
    host_visible: bool
    """Whether the CPU sees the device's memory at the device's addresses."""
    address_alignment: int
    """Bytes."""
    compute_units: int
    """0 if unknown."""
    priority_lowest: int
    """Of streams: a lower number is more urgent."""
    priority_highest: int
    driver_ordinal: int
    """The device's number within its driver."""
    code_formats: int
    """The forms of code that `compile_kernel` and modules take: bit N is OTR_CODE_* number N."""
    features: int
    """Features that code for the device may use besides 32-bit numbers: OTR_FEATURE_*."""
    largest_group: int
    """Work-items of a group; 0 if unknown."""
    sub_group: int
    """Work-items that run in step; 0 if unknown."""
    argument_block_bytes: int
    """Bytes of the arguments of a launch; 0 if unknown."""
    local_memory: int
    """Bytes that the items of a group share; 0 if unknown."""
    uuid: UUID | None
    """Identifies the device across processes; None if it has no such number."""
    pci_domain_id: int | None
    """The place where the device is plugged in, as CUDA names it; None if unknown."""
    pci_bus_id: int | None
    pci_device_id: int | None
    numa_node: int | None
    """The node of the host's memory that is nearest; None if unknown."""

    @property
    def multi_processor_count(self) -> int:
        """The compute units, as CUDA calls them: libraries of kernels size a grid by them. At least 1."""
        return max(1, self.compute_units)


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """The properties of a device."""
    info = _C.device_info(device_index(device))
    uuid = UUID(bytes=info["uuid"])
    return DeviceProperties(**{**info, "uuid": uuid if uuid.int else None})


def get_device_name(device: DeviceLike = None) -> str:
    """A device's name."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """The capabilities of a device, in the form of `torch.accelerator.get_device_capability`."""
    return torch._C._accelerator_getDeviceCapability(device_index(device))


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes of a device's memory that are in use, by any process."""
    free, total = mem_get_info(device)
    return total - free


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether copies between two devices go from one to the other. Else they go through host memory."""
    return _C.can_access_peer(device_index(device), device_index(peer_device))


def _no_sensor(name: str, device: DeviceLike) -> NotImplementedError:
    return NotImplementedError(
        f"{name} of {get_device_name(device)}: the driver contract has no sensors. The vendor's own tool tells it"
    )


def utilization(device: DeviceLike = None) -> int:
    """Refused: a driver does not tell how busy its device is."""
    raise _no_sensor("utilization", device)


def memory_usage(device: DeviceLike = None) -> int:
    """Refused: a driver does not tell how busy its memory is. `device_memory_used` tells how full it is."""
    raise _no_sensor("memory_usage", device)


def temperature(device: DeviceLike = None) -> int:
    """Refused: a driver does not tell it."""
    raise _no_sensor("temperature", device)


def power_draw(device: DeviceLike = None) -> int:
    """Refused: a driver does not tell it."""
    raise _no_sensor("power_draw", device)


def clock_rate(device: DeviceLike = None) -> int:
    """Refused: a driver does not tell it."""
    raise _no_sensor("clock_rate", device)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on all streams of a device. Raises the first failure of that work."""
    torch.accelerator.synchronize(device_index(device))


# ---- streams ---------------------------------------------------------------------------------------


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """This thread's current stream on a device."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The default stream of a device: the current one until another is set."""
    index = device_index(device)
    return torch.Stream(stream_id=0, device_index=index, device_type=torch._C._autograd.DeviceType.PrivateUse1.value)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream, and its device, this thread's current one. None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def get_stream_from_external(data_ptr: int, device: DeviceLike = None) -> torch.Stream:
    """A stream over a queue of the driver's own interface: an `ExternalStream`."""
    return ExternalStream(data_ptr, device)


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which this stream and its device are the current ones. None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


# ---- torch.compile ---------------------------------------------------------------------------------


def _inductor_backend_init() -> None:
    """Registers the device type with Inductor, which calls this before it compiles for it for the first time."""
    from .inductor import register

    register(device_type())


# ---- automatic mixed precision ---------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast can use."""
    return list(_vendor.autocast_dtypes)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether operators accept bfloat16. They always do: an operator without a kernel runs on the CPU."""
    return True
