"""The values of a kernel: scalars, expressions of the index, variables of the open loop nest, and arrays.

An index is a list of C expressions, one for each dimension; "0" where a dimension has one element. A value gives the C
expression of its element at an index. Integers give a second one, `wide`: the same number modulo 2^32 in 64 bits. Addresses are
made of that, because a compiler sees neighbours in `start + i` only where the sum cannot wrap.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator

from ..ttir import Refused, Type

FLOATS = ("f16", "bf16", "f32", "f64")
SMALL_FLOATS = ("f8E5M2", "f8E4M3FN")
ROUNDED = ("f16", "bf16")
"""Elements that are computed in f32, and rounded after each operation."""

BITS = {
    **dict.fromkeys(("i1",), 1),
    **dict.fromkeys(("i8", "f8E5M2", "f8E4M3FN"), 8),
    **dict.fromkeys(("i16", "f16", "bf16"), 16),
    **dict.fromkeys(("i32", "f32"), 32),
    **dict.fromkeys(("i64", "f64", "index"), 64),
}
_MEMORY = {
    "f32": "f32",
    "f64": "f64",
    "f16": "u16",
    "bf16": "u16",
    "f8E5M2": "u8",
    "f8E4M3FN": "u8",
    "i1": "u8",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
}
_REGISTER = {**_MEMORY, "f16": "f32", "bf16": "f32", "i1": "i32", "index": "i64"}
_BYTES = {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "i32": 4, "f32": 4}
"""Bytes of a number in an array, where they are not 8."""
UNSIGNED = {"i1": "u32", "i8": "u8", "i16": "u16", "i32": "u32", "i64": "u64", "index": "u64"}
_OF_BITS = {
    "f16": "otr_of_f16({})",
    "bf16": "otr_of_bf16({})",
    "f8E5M2": "otr_of_f8e5m2({})",
    "f8E4M3FN": "otr_of_f8e4m3({})",
    "f32": "otr_of_bits_f32((u32){})",
    "f64": "otr_of_bits_f64((u64){})",
}
_TO_BITS = {
    "f16": "otr_to_f16({})",
    "bf16": "otr_to_bf16({})",
    "f8E5M2": "otr_to_f8e5m2({})",
    "f8E4M3FN": "triton_to_f8e4m3({})",
    "f32": "otr_bits_f32({})",
    "f64": "otr_bits_f64({})",
}

Index = list[str]
Roots = frozenset[int | str]
ANYWHERE: Roots = frozenset("?")
"""Of a pointer that may lead into any argument's memory."""


def meet(one: Roots, other: Roots, overlap: bool) -> bool:
    """Whether two pointers may lead to the same memory."""
    is_known = one and other and not ANYWHERE & (one | other)
    return overlap or not is_known or bool(one & other)


def memory(element: str) -> str:
    """The C type of an element in the memory of a device."""
    if element.startswith("ptr "):
        return f"OTR_GLOBAL {memory(element[4:])}*"
    if element not in _MEMORY:
        raise Refused(f"the element type {element} has no form on this device")
    return _MEMORY[element]


def register(element: str) -> str:
    """The C type in which an element is computed."""
    if element.startswith("ptr "):
        return memory(element)
    if element not in _REGISTER:
        raise Refused(f"the element type {element} has no form on this device")
    return _REGISTER[element]


def stored(element: str) -> str:
    """The C type of an element in an array of the program."""
    return "u8" if element == "i1" else register(element)


def bytes_of(kind: str, count: int) -> int:
    """Bytes of an array."""
    return _BYTES.get(kind, 8) * count


def of_bits(element: str, bits: str) -> str:
    """A number out of its bits."""
    return _OF_BITS[element].format(bits) if element in _OF_BITS else f"({register(element)}){bits}"


def to_bits(element: str, value: str) -> str:
    """The bits of a number, as an integer without a sign where it is a floating-point number."""
    return _TO_BITS[element].format(value) if element in _TO_BITS else value


def rounded(element: str, value: str) -> str:
    """A number that was computed, as the element type has it."""
    return of_bits(element, to_bits(element, value)) if element in ROUNDED else value


def loaded(element: str, pointer: str) -> str:
    """The number that a pointer leads to."""
    if element in ROUNDED:
        return of_bits(element, f"*{pointer}")
    return f"(*{pointer} != 0)" if element == "i1" else f"*{pointer}"


def put(element: str, pointer: str, value: str) -> str:
    """The statement that stores a number."""
    return f"*{pointer} = {to_bits(element, value) if element in ROUNDED else value};"


def literal(text: str, element: str) -> str:
    """A constant of a module in C."""
    if element.startswith("ptr "):
        return f"(({register(element)}){text})"
    if element in FLOATS or element in SMALL_FLOATS:
        return _float_literal(text, element)
    of = register(element)
    number = {"true": 1, "false": 0}.get(text)
    if number is None:
        number = int(text, 0)
    if element == "i1":
        return str(number & 1)
    if element in ("i64", "index"):
        return f"(i64){number}" if abs(number) < 1 << 63 else f"(i64)(u64){number & (1 << 64) - 1:#x}"
    if element == "i32":
        return str(number) if abs(number) < 1 << 31 else "(-0x7fffffff - 1)"
    return f"({of}){number}"


def _float_literal(text: str, element: str) -> str:
    if text.startswith("0x"):
        bits = f"{int(text, 16):#x}"
        return bits if element in SMALL_FLOATS else of_bits(element, f"(u{BITS[element]}){bits}")
    number = float(text)
    if element in SMALL_FLOATS:
        return to_bits(element, f"{number!r}f")
    if element == "f64":
        return f"((f64){number!r})"
    return f"{struct.unpack('f', struct.pack('f', number))[0]!r}f"


# ---- indices ----


def canonical(shape: tuple[int, ...]) -> Index:
    """The index in a nest over a shape."""
    return ["0" if size == 1 else f"d{dim}" for dim, size in enumerate(shape)]


def flat(index: Index, shape: tuple[int, ...]) -> str:
    """The place of an element in an array. Dimensions of a nest that stand in their order are one: `d2_4` is that of d2, d3 and d4."""
    parts, first = [], 0
    while first < len(index):
        last = first
        while last + 1 < len(index) and _follows(index[last], index[last + 1]):
            last += 1
        stride = math.prod(shape[last + 1 :])
        one = index[first] if first == last else f"{index[first]}_{index[last][1:]}"
        if one != "0":
            parts.append(one if stride == 1 else f"({one}) * {stride}")
        first = last + 1
    return " + ".join(parts) or "0"


def _follows(one: str, other: str) -> bool:
    """Whether two indices are those of neighbouring dimensions."""
    return re.fullmatch(r"d\d+", one) is not None and other == f"d{int(one[1:]) + 1}"


def unflat(place: str, shape: tuple[int, ...]) -> Index:
    """The index of a place in an array."""
    index, left = [], math.prod(shape)
    total = left
    for size in shape:
        stride = left // size
        if size == 1:
            index.append("0")
        else:
            one = f"({place})" if stride == 1 else f"(({place}) / {stride})"
            index.append(one if left == total else f"({one} % {size})")
        left = stride
    return index


# ---- values ----


class Value:
    """A value of the kernel."""

    def __init__(self, type: Type, roots: Roots = frozenset()) -> None:
        self.type = type
        self.roots = roots
        """Arguments that a pointer may lead into."""

    cost = 0
    """Operations that are done anew where the value is used."""
    is_index = False
    """Whether the value is made of ranges, scalars and constants alone."""

    def at(self, index: Index) -> str:
        """The element at an index."""
        raise NotImplementedError

    def wide(self, index: Index) -> str:
        """An integer at an index, in 64 bits."""
        return f"(i64){self.at(index)}"

    def reads(self, at_own: bool = True) -> Iterator[tuple[Variable | Array, bool]]:
        """The variables and arrays that are read, and whether at the same index alone."""
        yield from ()


class Scalar(Value):
    """A C variable or constant."""

    is_index = True

    def __init__(self, type: Type, name: str, roots: Roots = frozenset()) -> None:
        super().__init__(type, roots)
        self.name = name

    def at(self, index: Index) -> str:
        return self.name


class Array(Value):
    """All elements, in memory of the program."""

    def __init__(self, type: Type, name: str, roots: Roots = frozenset(), is_run: bool = False) -> None:
        super().__init__(type, roots)
        self.name = name
        self.is_run = is_run
        """Whether integers go up by one from a first one that is not negative, if the last one is as much larger as there are
        elements between."""

    def at(self, index: Index) -> str:
        assert self.type.shape is not None
        return f"{self.name}[{flat(index, self.type.shape)}]"

    def reads(self, at_own: bool = True) -> Iterator[tuple[Variable | Array, bool]]:
        yield self, at_own


class Variable(Value):
    """An element in the open nest, which gets an array where something reads it later."""

    def __init__(self, type: Type, name: str, roots: Roots = frozenset()) -> None:
        super().__init__(type, roots)
        self.name = name
        self.array: Array | None = None
        self.is_run = False

    def at(self, index: Index) -> str:
        return self.array.at(index) if self.array else self.name

    def reads(self, at_own: bool = True) -> Iterator[tuple[Variable | Array, bool]]:
        yield self.array or self, at_own


class Expression(Value):
    """An expression of the index, which is written anew wherever it is used."""

    def __init__(
        self,
        type: Type,
        made: Callable[[Index], str],
        inputs: tuple[Value, ...] = (),
        *,
        wide: Callable[[Index], str] | None = None,
        moves: bool = False,
        operation: str = "",
        predicate: str = "",
        cost: int = 0,
        roots: Roots | None = None,
    ) -> None:
        super().__init__(type, frozenset().union(*(one.roots for one in inputs)) if roots is None else roots)
        self._made, self._wide = made, wide
        self.inputs = inputs
        self.moves = moves
        """Whether inputs are read at another index."""
        self.operation, self.predicate = operation, predicate
        self.cost = cost + sum(one.cost for one in inputs)
        self.is_index = all(one.is_index for one in inputs)

    def at(self, index: Index) -> str:
        return self._made(index)

    def wide(self, index: Index) -> str:
        return self._wide(index) if self._wide else super().wide(index)

    def reads(self, at_own: bool = True) -> Iterator[tuple[Variable | Array, bool]]:
        for one in self.inputs:
            yield from one.reads(at_own and not self.moves)
