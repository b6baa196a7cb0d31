"""The doors: each place of torch where a program names CUDA, and what stands there instead. All are opened, or none.

Those in C++ (`csrc/as_cuda.cpp`) take devices in operators, and in generators, streams, events and storages. A door that torch no longer has
is an error that names it, and the others are closed again.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .. import _C, _lifetime
from .._after_import import after_import
from .._distributed import NAME
from . import _names
from ._names import moved
from ._seen import ours

_opened: list[tuple[Any, str, bool, Any]] = []
"""The former members: owner, name, whether the owner itself had it, and its value."""
_MISSING = object()


def open_all() -> None:
    """Opens all doors. RuntimeError names one that is not there."""
    try:
        for (module, name), value in _names.replacements().items():
            _put(module, name, value)
        for door in (_operators, _tensors, _amp, _checkpoints, _distributed, _profiler, _libraries):
            door()
        for name, action in _LATER.items():
            after_import(name, functools.partial(_if_open, action))
    except Exception as error:
        close_all()
        raise RuntimeError(f"{__package__} is off, and nothing is changed: torch {torch.__version__} {error}") from error


def _if_open(action: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Changes a module that is imported late, unless all doors are closed by then."""
    if _opened:
        action(module)


def close_all() -> None:
    """Puts back what was there."""
    for owner, name, own, value in reversed(_opened):
        if own:
            setattr(owner, name, value)
        else:
            delattr(owner, name)
    _opened.clear()
    _C.as_cuda_close()
    _lifetime.answer_no_more_to("cuda")
    torch.serialization._package_registry[:] = [
        each for each in torch.serialization._package_registry if each[2] is not _restore
    ]


def _put(owner: Any, name: str, value: Any) -> None:
    before = inspect.getattr_static(owner, name, _MISSING)
    if before is _MISSING:
        raise AttributeError(f"has no {getattr(owner, '__name__', owner)}.{name}")
    _opened.append((owner, name, name in vars(owner), before))
    setattr(owner, name, value)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Puts `make(original)` in a place, and where other modules have the original by this name."""
    original = getattr(owner, name, _MISSING)
    if original is _MISSING:
        raise AttributeError(f"has no {getattr(owner, '__name__', owner)}.{name}")
    value = functools.wraps(original)(make(original))
    _put(owner, name, value)
    for module in list(sys.modules.values()):
        if module is not owner and isinstance(module, ModuleType) and vars(module).get(name) is original:
            _put(module, name, value)


def _first(original: Any) -> Any:
    """Has a function take a device or its type as the first argument."""

    def function(*arguments: Any, **keywords: Any) -> Any:
        if arguments:
            arguments = (moved(arguments[0]), *arguments[1:])
        for name in ("device_type", "device"):
            if name in keywords:
                keywords[name] = moved(keywords[name])
        return original(*arguments, **keywords)

    return function


def _method(original: Any) -> Any:
    """The same for a method."""
    call = _first(lambda first, *arguments, **keywords: original(*arguments[:1], first, *arguments[1:], **keywords))

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if arguments:
            return call(arguments[0], self, *arguments[1:], **keywords)
        return original(self, **{name: moved(value) if name in ("device", "device_type") else value for name, value in keywords.items()})

    return method


# ---- operators and tensors --------------------------------------------------------------------------


def _operators() -> None:
    _C.as_cuda_open((torch.Generator, torch.Stream, torch.Event, torch.UntypedStorage))
    _lifetime.answer_to("cuda")


def _tensors() -> None:
    _wrap(torch.random, "fork_rng", _first)
    here = torch.device(_lifetime.device_type())
    plain = torch.preserve_format

    def target(device: Any) -> torch.device:
        """An index is one of torch's accelerator elsewhere too, but no other device may be named here."""
        if device is None:
            return here
        found = torch.device(here.type, device) if isinstance(device, int) else ours(torch.device(device))
        if found.type != here.type:
            raise RuntimeError(f"Invalid device, must be cuda device: {device}")
        return found

    # Torch's own takes CUDA's devices alone, and no index.
    def tensor_cuda(original: Any) -> Any:
        def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = plain) -> Any:
            if non_blocking or memory_format is not plain:
                return self.to(target(device), non_blocking=non_blocking, memory_format=memory_format)
            return self.to(here if device is None else target(device))

        return cuda

    def storage_cuda(original: Any) -> Any:
        def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
            return self.to(device=target(device), non_blocking=non_blocking)

        return cuda

    _wrap(torch.Tensor, "cuda", tensor_cuda)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        _wrap(storage, "cuda", storage_cuda)


# ---- mixed precision ---------------------------------------------------------------------------------


def _amp() -> None:
    here = _lifetime.device_type()
    _wrap(torch.autocast, "__init__", _method)
    for name in ("get_autocast_dtype", "set_autocast_dtype"):
        _wrap(torch, name, _first)
    for name in ("is_autocast_available", "custom_fwd", "custom_bwd"):
        _wrap(torch.amp.autocast_mode, name, _first)

    # Without a device type these mean CUDA.
    def is_enabled(original: Any) -> Any:
        return lambda device_type="cuda": original(moved(device_type))

    def set_enabled(original: Any) -> Any:
        return lambda *arguments: original(here, *arguments) if len(arguments) == 1 else original(moved(arguments[0]), *arguments[1:])

    _wrap(torch, "is_autocast_enabled", is_enabled)
    _wrap(torch, "set_autocast_enabled", set_enabled)
    _wrap(torch, "get_autocast_gpu_dtype", lambda _original: lambda: torch.get_autocast_dtype(here))
    _wrap(torch, "set_autocast_gpu_dtype", lambda _original: lambda dtype: torch.set_autocast_dtype(here, dtype))

    def scaler(original: Any) -> Any:
        def __init__(self: Any, device: str = "cuda", *arguments: Any, **keywords: Any) -> None:
            original(self, moved(device), *arguments, **keywords)

        return __init__

    _wrap(torch.amp.GradScaler, "__init__", scaler)


# ---- checkpoints -------------------------------------------------------------------------------------


def _tag(storage: Any) -> str | None:
    """The device in a checkpoint: CUDA's name, so that a machine with CUDA loads it too."""
    return f"cuda:{storage.device.index}" if storage.device.type == _lifetime.device_type() else None


def _restore(storage: Any, location: str) -> Any:
    if location != "cuda" and not location.startswith("cuda:"):
        return None
    device = ours(torch.device(location))
    count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        raise RuntimeError(
            f"the checkpoint has tensors of {location}, and the devices are numbered from 0 to {count - 1}: load it with "
            "map_location, as map_location='cuda:0'"
        )
    return storage.to(device=device)


def _checkpoints() -> None:
    # Before torch's own for CUDA, which has 20.
    torch.serialization.register_package(15, _tag, _restore)

    def with_location(original: Any) -> Any:
        def load(f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
            return original(f, moved(map_location), *arguments, **keywords)

        return load

    _wrap(torch.jit, "load", with_location)


# ---- torch.distributed ---------------------------------------------------------------------------------


def _backend(name: Any) -> Any:
    """A backend, or backends by device, with ours for NCCL."""
    if not isinstance(name, str):
        return name
    if name.lower() == "nccl":
        return NAME
    parts = [part.partition(":") for part in name.split(",")]
    return ",".join(
        f"{moved(kind)}:{NAME if each.lower() == 'nccl' else each}" if mark else kind for kind, mark, each in parts
    )


def _distributed() -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import device_mesh, distributed_c10d

    def with_backend(original: Any) -> Any:
        signature = inspect.signature(original)

        def function(*arguments: Any, **keywords: Any) -> Any:
            given = signature.bind(*arguments, **keywords)
            for name, change in (("backend", _backend), ("device_id", moved)):
                if name in given.arguments:
                    given.arguments[name] = change(given.arguments[name])
            return original(*given.args, **given.kwargs)

        return function

    for name in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration"):
        _wrap(distributed_c10d, name, with_backend)
    _wrap(device_mesh, "init_device_mesh", _first)
    _wrap(device_mesh.DeviceMesh, "__init__", _method)
    _wrap(distributed_c10d, "is_nccl_available", lambda original: lambda: True)


# ---- profiles, and what only CUDA can run -----------------------------------------------------------------


def _profiler() -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler.profiler import _KinetoProfile

    def with_activities(original: Any) -> Any:
        def __init__(self: Any, *arguments: Any, activities: Any = None, **keywords: Any) -> None:
            if activities is not None:
                cuda, own = ProfilerActivity.CUDA, ProfilerActivity.PrivateUse1
                activities = [own if each == cuda else each for each in activities]
            original(self, *arguments, activities=activities, **keywords)

        return __init__

    _wrap(_KinetoProfile, "__init__", with_activities)


def _libraries() -> None:
    def naming(original: Any) -> Any:
        def load_library(path: Any) -> None:
            try:
                original(path)
            except OSError as error:
                if "libcu" not in str(error) and "cuda" not in str(error):
                    raise
                raise OSError(f"{path} is a library for CUDA, which cannot run on {_lifetime.device_type()}: {error}") from error

        return load_library

    _wrap(torch.ops, "load_library", naming)


def _no_extensions(module: ModuleType) -> None:
    """torch.utils.cpp_extension: refuses to build code for CUDA."""
    here = _lifetime.device_type()

    def refuse(name: str, why: str) -> None:
        raise RuntimeError(f"{name} is an extension for CUDA, which cannot run on {here}: {why}")

    def extension(original: Any) -> Any:
        return lambda name, sources, *_arguments, **_keywords: refuse(name, f"CUDAExtension of {', '.join(map(str, sources))}")

    def load(original: Any) -> Any:
        def function(name: str, sources: Any, *arguments: Any, **keywords: Any) -> Any:
            sources = [sources] if isinstance(sources, str) else list(sources)
            of_cuda = [each for each in sources if str(each).endswith((".cu", ".cuh"))]
            if of_cuda or keywords.get("with_cuda"):
                refuse(name, f"it has {of_cuda[0]}" if of_cuda else "with_cuda is set")
            return original(name, sources, *arguments, **keywords)

        return function

    def load_inline(original: Any) -> Any:
        def function(name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **keywords: Any) -> Any:
            if cuda_sources or keywords.get("with_cuda"):
                refuse(name, "it has cuda_sources" if cuda_sources else "with_cuda is set")
            return original(name, cpp_sources, cuda_sources, *arguments, **keywords)

        return function

    for name, make in (("CUDAExtension", extension), ("load", load), ("load_inline", load_inline)):
        _wrap(module, name, make)


# ---- torch.compile ------------------------------------------------------------------------------------------


def _in_mode(class_name: str) -> Callable[[ModuleType], None]:
    """Modes of torch.compile see a call before the dispatcher gives it to a device, so they get the device as it will be."""

    def change(module: ModuleType) -> None:
        def with_ours(original: Any) -> Any:
            def __torch_dispatch__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if kwargs and (device := kwargs.get("device")) is not None:
                    kwargs = {**kwargs, "device": moved(device)}
                return original(self, func, types, args, kwargs)

            return __torch_dispatch__

        _wrap(getattr(module, class_name), "__torch_dispatch__", with_ours)

    return change


_LATER: dict[str, Callable[[ModuleType], None]] = {
    "torch._subclasses.fake_tensor": _in_mode("FakeTensorMode"),
    "torch._subclasses.functional_tensor": _in_mode("FunctionalTensorMode"),
    "torch.fx.experimental.proxy_tensor": _in_mode("ProxyTorchDispatchMode"),
    "torch.utils.cpp_extension": _no_extensions,
}
"""Changes to modules when the program, or torch, imports them."""
