"""Kernels of the user's own: source in a language that the driver compiles, launched on tensors in stream order.

`compile_kernel` is to a device what `torch.cuda._compile_kernel` is to CUDA's. This module packs arguments, and says what
is wrong with them. It must never guess the type of an argument: what is not plain is to be a ctypes object.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import torch

from . import _C
from ._lifetime import is_served
from ._untraced import untraced

__all__ = ["Kernel", "LocalMemory", "compile_kernel"]

LANGUAGES = {"opencl": 5, "cuda": 6}
"""Numbers of formats, OTR_CODE_*."""

_VALUE, _ADDRESS, _LOCAL = 0, 1, 2
_MOST = 2**32 - 1


class LocalMemory:
    """An argument that is local memory of a group: `__local float*` of OpenCL C."""

    def __init__(self, size: int) -> None:
        if not 0 < size <= _MOST:
            raise ValueError(f"local memory of {size} bytes: it has at least one byte")
        self.size = size


class Kernel:
    """A kernel of `compile_kernel`. Called with a grid and arguments, it runs in the order of the current stream."""

    def __init__(self, handle: Any, name: str, device: torch.device) -> None:
        self._handle = handle
        self.name = name
        self.device = device

    def __repr__(self) -> str:
        return f"<kernel {self.name} on {self.device}>"

    def __call__(
        self,
        grid: int | Sequence[int] = 1,
        block: int | Sequence[int] = 1,
        args: Sequence[Any] = (),
        shared_mem: int = 0,
        stream: torch.Stream | None = None,
    ) -> None:
        """Launches the kernel and returns at once.

        `grid` is the number of groups and `block` that of the work-items of a group, in up to three dimensions.
        `args` are tensors of the kernel's device (their address is passed; None is a NULL pointer), `int` (passed as a
        32-bit integer), `float` (a 32-bit float), ctypes objects for other types, and `LocalMemory`. `shared_mem` is
        local memory besides, in bytes. A stream that captures records the launch.
        """
        self._launch(grid, block, args, shared_mem, stream)

    @untraced
    def _launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        shared_mem: int,
        stream: torch.Stream | None,
    ) -> None:
        packed, parts = bytearray(), bytearray()
        for number, argument in enumerate(args):
            offset, size, kind = self._pack(packed, number, argument)
            parts += struct.pack("=III", offset, size, kind)
        groups, items = _dimensions("grid", grid), _dimensions("block", block)
        with contextlib.nullcontext() if stream is None else stream:
            _C.kernel_launch(
                self._handle, self.device.index, groups, items, shared_mem, bytes(packed), bytes(parts)
            )

    def _pack(self, block: bytearray, number: int, argument: Any) -> tuple[int, int, int]:
        """Appends an argument to the block. Returns its offset, size and kind."""
        if isinstance(argument, LocalMemory):
            return 0, argument.size, _LOCAL
        if argument is None:
            return _append(block, bytes(8), 8), 8, _ADDRESS
        if isinstance(argument, torch.Tensor):
            if argument.device != self.device:
                raise ValueError(
                    f"argument {number} of {self.name} is a tensor on {argument.device}, and the kernel was compiled "
                    f"for {self.device}"
                )
            return _append(block, struct.pack("=Q", argument.data_ptr()), 8), 8, _ADDRESS
        if isinstance(argument, bool):
            raise TypeError(f"argument {number} of {self.name} is a bool: say how it is passed, as ctypes.c_int32(1)")
        if isinstance(argument, int):
            if not -(2**31) <= argument < 2**31:
                raise OverflowError(
                    f"argument {number} of {self.name} is {argument}, and an int is passed in 32 bits: "
                    "use ctypes.c_int64 or ctypes.c_uint64"
                )
            argument = ctypes.c_int32(argument)
        elif isinstance(argument, float):
            argument = ctypes.c_float(argument)
        elif not isinstance(argument, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
            raise TypeError(
                f"argument {number} of {self.name} is of type {type(argument).__name__}: arguments are tensors, None, "
                "int, float, ctypes objects and LocalMemory"
            )
        value = bytes(argument)
        return _append(block, value, ctypes.alignment(argument)), len(value), _VALUE


def _append(block: bytearray, value: bytes, alignment: int) -> int:
    block += bytes(-len(block) % alignment)
    offset = len(block)
    block += value
    return offset


def _dimensions(what: str, size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(one, int) and 0 < one <= _MOST for one in sizes):
        raise ValueError(f"{what} is {size!r}: it is one to three positive integers")
    return (*sizes, 1, 1)[:3]


def _device(device: torch.device | str | int | None) -> torch.device:
    """The device that is meant, with its index."""
    if device is None or isinstance(device, int):
        kind = torch.accelerator.current_accelerator()
        found = torch.device(kind.type if kind is not None else "cpu", device)
    else:
        found = torch.device(device)
    if not is_served(found.type):
        raise ValueError(f"kernels are compiled for devices of Outrigger, not for {found}")
    if found.index is None:
        found = torch.device(found.type, torch.accelerator.current_device_index())
    return found


def compile_kernel(
    source: str,
    name: str,
    *,
    language: str | None = None,
    options: str | Sequence[str] = "",
    device: torch.device | str | int | None = None,
) -> Kernel:
    """Compiles source for a device, and returns the kernel of a name.

    `language` is "opencl" or "cuda"; without it, it is the one that the device's driver takes. `options` are for its
    compiler. The compiled form is kept on disk, so the next process does not compile again. An error of the compiler is
    a `ValueError` with its log and the lines that it names.

        kernel = torch_outrigger.compile_kernel(
            "__kernel void scale(__global float* x, float by) { x[get_global_id(0)] *= by; }", "scale")
        kernel(grid=x.numel() // 64, block=64, args=(x, 2.0))
    """
    where = _device(device)
    index = where.index
    taken = _C.device_info(index)["code_formats"]
    known = [one for one, number in LANGUAGES.items() if taken >> number & 1]
    if language is None:
        if not known:
            raise NotImplementedError(f"the driver of device {index} compiles no language")
        language = known[0]
    if language not in LANGUAGES:
        raise ValueError(f"language {language!r} is unknown: it is one of {', '.join(map(repr, LANGUAGES))}")
    if language not in known:
        raise NotImplementedError(
            f"the driver of device {index} does not compile {language}; it compiles: {', '.join(known) or 'nothing'}"
        )
    options = options if isinstance(options, str) else " ".join(options)
    handle = _C.kernel_compile(index, LANGUAGES[language], source.encode(), options, name)
    return Kernel(handle, name, where)
