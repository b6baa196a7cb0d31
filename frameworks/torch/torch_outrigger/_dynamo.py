"""The device for torch.compile: the interface that Dynamo uses, the options that Inductor compiles with, and that Triton's kernels run.

Neither has a hook for this, and `import torch` must not import them. So the interface is added when Dynamo's module of
interfaces has been imported, and `compile_fx` is wrapped when Inductor's has. It must never start the runtime: Dynamo asks every interface whether its device is
available, also in programs that compile only for the CPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ._after_import import after_import, replace

_MODULE = "torch._dynamo.device_interface"
_COMPILER = "torch._inductor.compile_fx"

whole_operators: tuple[str, ...] = ()
"""Operators that a vendor's device computes better whole."""


def arch(index: int = 0) -> str:
    """For what Triton compiles: the driver of a device, if the runtime has started, and what limits groups of many items."""
    from . import _C
    from ._lifetime import is_initialized

    if not is_initialized():
        return ""
    from .inductor.program import group_limits

    limits = group_limits(index)
    return ":".join([_C.device_info(index)["driver"], *(map(str, limits) if limits[0] > 1 else ())])


@functools.cache
def no_triton() -> str | None:
    """The reason why kernels of Triton do not run on the device; None if they do."""
    try:
        import triton
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    if "outrigger" not in triton.backends.backends:
        return "Triton has not found torch_outrigger, whose entry point triton.backends comes with its installation"
    from .triton.driver import refusal

    return refusal()


def _with_triton(base: type) -> type:
    """An interface of Dynamo, with what torch asks about Triton."""

    class WithTriton(base):
        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return no_triton() is None

        @staticmethod
        def raise_if_triton_unavailable(device: Any = None) -> None:
            from torch._dynamo.exc import TritonUnavailableError

            reason = no_triton()
            if reason is not None:
                raise TritonUnavailableError(reason)

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            from ._lifetime import device_index

            return arch(device_index(device))

        @staticmethod
        def get_raw_stream(index: int) -> int:
            return torch._C._accelerator_getStream(index).stream_id

    return WithTriton


def _interface(base: type) -> type:
    """The interface, as a subclass of Dynamo's."""
    from . import _device
    from ._lifetime import is_initialized

    class OutriggerInterface(base):
        device = _device.device
        Event = torch.Event
        Stream = torch.Stream

        class Worker:
            set_device = staticmethod(_device.set_device)
            current_device = staticmethod(_device.current_device)
            get_device_properties = staticmethod(_device.get_device_properties)

        current_device = staticmethod(_device.current_device)
        set_device = staticmethod(_device.set_device)
        device_count = staticmethod(_device.device_count)
        stream = staticmethod(_device.stream)
        current_stream = staticmethod(_device.current_stream)
        set_stream = staticmethod(_device.set_stream)
        synchronize = staticmethod(_device.synchronize)
        memory_allocated = staticmethod(_device.memory_allocated)
        exchange_device = staticmethod(torch._C._accelerator_exchangeDevice)
        maybe_exchange_device = staticmethod(torch._C._accelerator_maybeExchangeDevice)
        is_bf16_supported = staticmethod(_device.is_bf16_supported)

        @staticmethod
        def is_available() -> bool:
            return is_initialized() and _device.is_available()

        @classmethod
        def get_multi_processor_count(cls, device: Any = None) -> int:
            return max(1, cls.get_device_properties(device).compute_units)

    return OutriggerInterface


def _add_to(module: ModuleType, name: str) -> None:
    module.device_interfaces[name] = _with_triton(_interface(module.DeviceInterface))


def _add_to_mtia(module: ModuleType) -> None:
    module.MtiaInterface = _with_triton(module.MtiaInterface)


def _name_target(_: ModuleType) -> None:
    """Answers for a package that is not public, which Inductor asks for what it compiles a kernel of Triton for MTIA."""
    flags = ModuleType("mtia.host_runtime.torch_mtia.acc_flags")
    flags.build_codename = arch
    sys.modules.setdefault(flags.__name__, flags)


def _devices_in(name: str, model: Any, inputs: Any) -> list[torch.device]:
    """The devices of a type that a graph has tensors of, in their order."""
    found: dict[torch.device, None] = {}

    def note(value: Any) -> None:
        device = value if isinstance(value, torch.device) else getattr(value, "device", None)
        if isinstance(device, torch.device) and device.type == name:
            found[device] = None

    for one in inputs:
        note(one)
    for node in getattr(getattr(model, "graph", None), "nodes", ()):
        for one in torch.utils._pytree.tree_leaves((*node.meta.values(), *node.args, *node.kwargs.values())):
            note(one)
    return list(found)


def _places_in(model: Any) -> str:
    """On which streams and in which pools a graph computes, by its nodes' numbers; empty for those of the caller."""
    nodes = enumerate(getattr(getattr(model, "graph", None), "nodes", ()))
    chosen = ((number, node.meta.get("custom") or {}) for number, node in nodes)
    return ", ".join(
        f"{number} on {one.get('stream')} in {one.get('mempool')}" for number, one in chosen if "stream" in one or "mempool" in one
    )


def _wrap(module: ModuleType, name: str) -> None:
    """Has Inductor compile graphs of a device type with its options."""
    stock = module.compile_fx

    @functools.wraps(stock)
    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        # Options of the program are set when this is called for the second time.
        devices = [] if kwargs.get("config_patches") else _devices_in(name, model_, example_inputs_)
        if devices:
            from . import inductor

            inductor.register(name)
            kwargs["config_patches"] = inductor.patches(devices, _places_in(model_)) or None
        return stock(model_, example_inputs_, *args, **kwargs)

    module.compile_fx = compile_fx


def _has_triton(stock: Callable[..., bool]) -> Callable[..., bool]:
    """Triton is there also before the runtime has started. torch asks once, and keeps the answer."""

    @functools.wraps(stock)
    def has_triton(*, include_cpu: bool = False) -> bool:
        from torch._inductor.config import triton_disable_device_detection

        is_here = not triton_disable_device_detection and no_triton() is None
        return is_here or stock(include_cpu=include_cpu)

    has_triton.cache_clear = stock.cache_clear
    return has_triton


def _add_benchmarker(module: ModuleType, name: str) -> None:
    """Tells Inductor how to time configurations of a program's kernel."""

    def median(self: Any, call: Callable[[], Any], **_: Any) -> float:
        from .triton.driver import benchmark

        return benchmark(call)

    module.register_benchmarker(name, median, override=True)


def _no_gpu(module: ModuleType, name: str) -> None:
    """Takes a device type out of those for which Inductor looks for Triton."""
    if name in module.GPU_TYPES:
        module.GPU_TYPES.remove(name)


def register(name: str) -> None:
    """Adds the interface of the device type `name`, now or when Dynamo is imported."""
    after_import(_MODULE, lambda module: _add_to(module, name))


def register_compiler(name: str) -> None:
    """Has Inductor compile for the device type `name`, also if torch knows that type itself."""
    after_import(_COMPILER, lambda module: _wrap(module, name))
    after_import("torch._inductor.utils", lambda module: _no_gpu(module, name))
    after_import("torch._inductor.runtime.benchmarking", lambda module: _add_benchmarker(module, name))
    if name == "mtia":
        after_import(_MODULE, _add_to_mtia)
        after_import("torch._inductor.runtime.triton_heuristics", _name_target)


def register_triton() -> None:
    """Has torch know that kernels of Triton run on the device."""
    after_import("torch.utils._triton", lambda module: replace(module, "has_triton", _has_triton))
