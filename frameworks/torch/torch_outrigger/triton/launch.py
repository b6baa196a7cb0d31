"""A launch of a Triton kernel: through the project's program, in the order of the current stream, recorded by a capture as any other.

What an argument is wrong for is said by the kernel's name. It must never look at arguments one by one in Python before the launch
has been refused: a launch of a kernel that is ready is the call of an object in C++.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.driver import decompose_descriptor
from triton.compiler.compiler import CompiledKernel
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import TensorWrapper

from .. import _C
from .._lifetime import is_served
from ..inductor.program import Program

_LARGEST_GRID = 2**31 - 1
"""Programs of a dimension: their numbers are 32-bit integers."""

_WHOLE = 32768
"""Elements of a program, for the library: so many that it puts no two programs into a group."""

_FAR = 1 << 62
"""Bytes."""

_LETTERS = {"f32": "f", "f64": "d"}
"""Of kinds of numbers as a program's kernel takes them. All others are integers."""


class Function:
    """The text of a kernel for one device: what Triton calls its function."""

    def __init__(self, text: str, index: int) -> None:
        self.text = text
        self.index = index
        self.kernel: Any = None
        """The kernel of the program for tensors of the process's device type."""
        self.others: dict[str, Any] = {}
        """Kernels for tensors of another device type that the process has besides."""


class Launch(NamedTuple):
    """A launch that was looked at, and is yet to be made."""

    launcher: Launcher
    function: Function
    device_type: str
    given: list[Any]
    grid: tuple[int, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the kernel's call."""
        gx, gy, gz = self.grid
        return *self.given, *self.launcher.bounds(self.given), gx, gy, gz, gx * gy * gz

    def kernel(self) -> Any:
        """The kernel of the program, which is compiled in the background from here on, or comes from the store."""
        return self.launcher.bind(self.function, self.device_type)


_takers: dict[int, Callable[[Launch], None]] = {}
"""Functions that get the launches of a thread, by its number."""


@contextlib.contextmanager
def taken_by(taker: Callable[[Launch], None]) -> Iterator[None]:
    """Gives the launches of this thread to a function. None of them is made."""
    _takers[threading.get_ident()] = taker
    try:
        yield
    finally:
        del _takers[threading.get_ident()]


class Launcher:
    """Launches kernels of one signature, as Triton calls it."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name = metadata.name
        self._source, self._metadata = source, metadata
        self._arguments = metadata.arguments
        self.pick = _picker(tuple(source.signature.values()))
        self._overlaps = metadata.overlap
        self._items = metadata.items
        self._has_checks = metadata.checks
        self._looks = metadata.looks
        # The name of a failure of the stream.
        self._label = ": ".join([self.name, *(["; ".join(metadata.asserts)] if metadata.asserts else [])])
        self._overlapping: CompiledKernel | None = None
        self._lock = threading.Lock()

    def __call__(
        self,
        gx: int,
        gy: int,
        gz: int,
        stream: int | None,
        function: Function,
        packed: Any,
        about: Any,
        enter: Callable[[Any], None] | None,
        leave: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        if enter is not None:
            enter(about)
        given = self.pick(args)
        current = torch._C._accelerator_getStream(function.index)
        if stream is None or stream == current.stream_id:
            self.launch(function, gx, gy, gz, given)
        else:
            with torch.Stream(stream_id=stream, device_index=current.device_index, device_type=current.device_type):
                self.launch(function, gx, gy, gz, given)
        if leave is not None:
            leave(about)

    def launch(self, function: Function, gx: int, gy: int, gz: int, given: Sequence[Any]) -> None:
        """Launches a kernel with its arguments one after the other."""
        if _takers and (taker := _takers.get(threading.get_ident())):
            taker(self._looked_at(function, gx, gy, gz, given))
            return
        try:
            if not self._overlaps and _C.storages_meet(*given):
                compiled = self._with_overlap()
                compiled.run.launch(compiled.function, gx, gy, gz, given)
                return
            if (gx | gy | gz) >> 31 == 0 and function.kernel is not None and not self._looks:
                function.kernel(*given, gx, gy, gz, gx * gy * gz)
                return
        except (TypeError, ValueError):
            # The argument is named below.
            pass
        launch = self._looked_at(function, gx, gy, gz, given)
        launch.kernel()(*launch.arguments)

    def bind(self, function: Function, device_type: str) -> Any:
        """The kernel of the program, which is compiled in the background from here on, or comes from the store."""
        with self._lock:
            is_main = device_type == triton.runtime.driver.active.device_type
            kernel = function.kernel if is_main else function.others.get(device_type)
            if kernel is not None:
                return kernel
            program = Program(device_type, function.index, self._items)
            kinds = "".join("a" if kind == "pointer" else _LETTERS.get(one, "i") for kind, one in self._arguments)
            kinds += "ii" * kinds.count("a") * self._looks
            pointers = [f"OTR_GLOBAL {one}*" for kind, one in self._arguments if kind == "pointer"]
            total = (len(kinds) + 3,)
            kinds += "iiii" + "c" * self._has_checks
            kernel = program.kernel(self.name, kinds, total, _WHOLE, True, pointers, function.text, self._label)
            program.begin()
            if is_main:
                function.kernel = kernel
            else:
                function.others[device_type] = kernel
            return kernel

    def _with_overlap(self) -> CompiledKernel:
        """The kernel that is right also where a store through one argument is seen by a load through another."""
        with self._lock:
            if self._overlapping is None:
                self._overlapping = self._compile_overlapping()
            return self._overlapping

    def _compile_overlapping(self) -> CompiledKernel:
        # A kernel that another process has compiled for torch.compile has no function of Python any more.
        name = f"{self._source.name[:150]}.ttir"
        module = get_cache_manager(self._metadata.hash).get_file(name)
        if module is None:
            raise RuntimeError(f"Triton's cache has no {name} any more, of which a kernel for arguments that overlap is made")
        options = {**self._metadata._asdict(), "overlap": True}
        compiled = triton.compile(module, target=self._metadata.target, options=options)
        # Triton's objects complain if they live to the end of the process.
        compiled.src.module = None
        return compiled

    def _looked_at(self, function: Function, gx: int, gy: int, gz: int, given: Sequence[Any]) -> Launch:
        """A launch whose arguments need not be tensors and numbers. An error says which one is wrong."""
        grid = tuple(operator.index(one) if hasattr(one, "__index__") else one for one in (gx, gy, gz))
        if not all(isinstance(one, int) and 0 <= one <= _LARGEST_GRID for one in grid):
            raise ValueError(f"the grid {grid} of {self.name}: each dimension has 0 to {_LARGEST_GRID} programs")
        if len(given) != len(self._arguments):
            raise TypeError(f"{self.name} takes {len(self._arguments)} arguments, and was given {len(given)}")
        plain = [self._plain(number, kind, one) for number, ((kind, _), one) in enumerate(zip(self._arguments, given, strict=True))]
        tensors = [(number, one) for number, one in enumerate(plain) if isinstance(one, torch.Tensor)]
        device_type = tensors[0][1].device.type if tensors else triton.runtime.driver.active.device_type
        for number, tensor in tensors:
            if tensor.device != torch.device(device_type, function.index):
                raise ValueError(
                    f"argument {number} of {self.name} is a tensor on {tensor.device}, and the current device, for which the kernel "
                    f"was compiled, is {device_type}:{function.index}"
                )
        addresses = sum(kind == "pointer" and isinstance(one, int) for (kind, _), one in zip(self._arguments, plain, strict=True))
        meet = addresses > 0 and addresses + len(tensors) > 1 or _C.storages_meet(*plain)
        if meet and not self._overlaps:
            compiled = self._with_overlap()
            return Launch(compiled.run, compiled.function, device_type, plain, grid)
        return Launch(self, function, device_type, plain, grid)

    def bounds(self, given: Sequence[Any]) -> Iterator[int]:
        """The bounds of each pointer's memory, in bytes from there, if the kernel asks. Nobody knows those of a mere address."""
        for (kind, _), one in zip(self._arguments, given, strict=True):
            if self._looks and kind == "pointer":
                is_known = isinstance(one, torch.Tensor)
                first = -one.storage_offset() * one.element_size() if is_known else -_FAR
                yield first
                yield first + one.untyped_storage().nbytes() if is_known else _FAR

    def _plain(self, number: int, kind: str, given: Any) -> Any:
        """An argument as a tensor, an address or a number."""
        if kind != "pointer":
            if not isinstance(given, (int, float)) and not hasattr(given, "__index__") and not hasattr(given, "__float__"):
                raise TypeError(f"argument {number} of {self.name} is a {type(given).__name__}, and it is to be a number")
            return given
        if given is None or type(given) is int:
            return given
        if isinstance(given, TensorWrapper):
            given = given.base
        if isinstance(given, torch.Tensor):
            if not is_served(given.device.type):
                raise ValueError(
                    f"Pointer argument (at {number}) cannot be accessed from Triton (cpu tensor?): {self.name} was given a tensor "
                    f"on {given.device}"
                )
            return given
        if not hasattr(given, "data_ptr"):
            raise TypeError(f"argument {number} of {self.name} is a {type(given).__name__}, and it is to be a tensor")
        return given.data_ptr()


def _picker(kinds: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    """A function that takes what a kernel is given at run time out of its arguments."""
    if any(isinstance(one, tuple) or one.startswith("tensordesc") for one in kinds):
        return lambda args: _leaves(kinds, args, [])
    taken = [number for number, one in enumerate(kinds) if one != "constexpr"]
    if len(taken) == len(kinds):
        return tuple
    if len(taken) < 2:
        return lambda args: [args[number] for number in taken]
    return operator.itemgetter(*taken)


def _leaves(kinds: tuple[Any, ...], args: Sequence[Any], found: list[Any]) -> list[Any]:
    for kind, one in zip(kinds, args, strict=True):
        if isinstance(kind, tuple):
            _leaves(kind, one, found)
        elif kind.startswith("tensordesc"):
            found += decompose_descriptor(one)
        elif kind != "constexpr":
            found.append(one)
    return found
