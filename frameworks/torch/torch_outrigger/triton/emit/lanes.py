"""A program that a group of many items runs: element i of a tensor belongs to item i mod W, where it has the slot i / W.

A piece of text is a loop in which an item goes through its own elements of a shape. An array that all pieces read and write at
their own places alone is in registers of the items, any other one in memory of the group. Pieces have no barriers: `text` puts one
in front of each piece that reads what another item may have written, or writes what another one may still read.

Scalars are the same in all items, and so are conditions: a barrier may stand in a loop or a branch. What one item alone does is
a store of a scalar, an atomic operation on one, and a load of what others may write meanwhile, which it tells the group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..ttir import Operation, Refused, Type
from .nests import INDEX, Combination, Fold, Nest
from .values import ANYWHERE, Array, Roots, Scalar, Value, bytes_of, canonical, flat, meet, register

if TYPE_CHECKING:
    from .writer import Writer

LOCAL = "OTR_LOCAL "
"""In front of the type of memory of the group."""

_MOST_SLOTS, _MOST_LINES = 64, 512
"""Up to so many slots, and so many lines in all, a loop is written out, so that slots are registers."""


class NotInLanes(Refused):
    """A kernel needs what this form has not. One item runs its programs."""


# ---- loops over an item's own elements ----


def _own(array: str, slot: str, place: str) -> str:
    """An element of an array, at the place of a loop. Which of the two numbers it is follows from where the array is."""
    return f"{array}[${slot}${place}$]"


def _loop(count: int, width: int, body: Callable[[str, str], list[str]], rounds: int = 1) -> list[str]:
    """A loop over an item's own ones of so many elements, of which the body is told slot and place. It may be a loop of so many rounds."""
    if count <= width:
        return ["{" if count == width else f"if (lane < {count}) {{", *body("0", "lane"), "}"]
    if count % width:
        raise NotInLanes(f"a tensor of {count} elements is not the same for {width} items")
    slots, lines = count // width, body("slot", "place")
    head = [f"for (i32 slot = 0; slot < {slots}; slot++) {{", f"const i32 place = slot * {width} + lane;"]
    return [*_unrolled(slots * rounds, lines), *head, *lines, "}"]


def _unrolled(slots: int, lines: list[str]) -> list[str]:
    """The line in front of a loop that is to be unrolled."""
    return ["OTR_UNROLL"] if slots <= _MOST_SLOTS and slots * len(lines) <= _MOST_LINES else []


def _numbered(shape: tuple[int, ...], statements: list[str], slot: str, place: str) -> list[str]:
    """Statements of a nest over a shape, for one of its elements."""
    here = re.escape(flat(canonical(shape), shape))
    marked = [re.sub(rf"\b(array\d+)\[{here}\]", lambda found: _own(found[1], slot, place), one) for one in statements]
    names = {found[0]: found for one in marked for found in INDEX.finditer(one)}
    return [*(f"const i32 {name} = {_dims(shape, found, place)};" for name, found in sorted(names.items())), *marked]


def _dims(shape: tuple[int, ...], found: re.Match[str], place: str) -> str:
    """The index of a dimension, or of several that follow each other, out of the place of an element."""
    first, last = int(found[1]), int(found[2] or found[1])
    stride, size = math.prod(shape[last + 1 :]), math.prod(shape[first : last + 1])
    divided = f"(u32){place} / {stride}" if stride > 1 else f"(u32){place}"
    return f"(i32)({divided} % {size})" if math.prod(shape[:first]) > 1 else f"(i32)({divided})"


def over(writer: Writer, shape: tuple[int, ...], statements: list[str]) -> list[str]:
    """Statements for each index of a shape, by the items whose elements these are."""
    return _loop(math.prod(shape), writer.width, lambda slot, place: _numbered(shape, statements, slot, place))


def by_one(writer: Writer, text: str) -> str:
    """A statement that one item runs."""
    return f"if (lane == 0) {{ {text} }}" if writer.width > 1 else text


def told(writer: Writer, name: str, type: Type, text: str, roots: Roots, *, always: bool, fences: tuple[str, str] | None = None) -> None:
    """Sets a scalar of all items to what one of them finds in memory. Each looks itself where no program writes there.

    An atomic operation has words in front of it and behind it."""
    cell = writer.scratch(type.element, 1)
    if not always:
        writer.shared_loads[len(writer.pieces)] = (f"{name} = {text};", roots)
    before, behind = fences or ("", "")
    writer.line(by_one(writer, f"{before}{cell}[0] = {text};{behind}"), reads=[roots], writes=[roots] if fences else [])
    writer.line(f"{name} = {cell}[0];")


def atomic(writer: Writer, operation: Operation, order: str, pointer: Value, called: str, guard: str) -> None:
    """An atomic operation: of elements by the items that have them, of a scalar by one item. It may give nothing."""
    before = "OTR_RELEASE(); " if order in ("release", "acq_rel") else ""
    behind = " OTR_ACQUIRE();" if order in ("acquire", "acq_rel") else ""
    roots = ANYWHERE if before or behind else pointer.roots
    shape, type = pointer.type.shape, operation.types[0] if operation.results else None
    zero = f"({register(type.element)})0" if type else ""
    if shape is None and type is not None:
        name = writer.declare(type)
        text = f"{guard.removeprefix('if ')}? {called} : {zero}" if guard else called
        told(writer, name, type, text, roots, always=True, fences=(before, behind))
        writer.values[operation.results[0]] = Scalar(type, name, ANYWHERE)
    elif shape is None:
        writer.line(by_one(writer, f"{before}{guard}{called};{behind}"), writes=[roots])
    else:
        lines = [f"{guard}{called};"]
        if type is not None:
            made = writer.array(type)
            made.roots = ANYWHERE
            to = made.at(canonical(shape))
            lines = [*([f"{to} = {zero};"] if guard else []), f"{guard}{to} = {called};"]
            writer.values[operation.results[0]] = made
        fences = [one.strip() for one in (before, behind)]
        writer.piece(["{", *filter(None, fences[:1]), *over(writer, shape, lines), *filter(None, fences[1:]), "}"], writes=[roots])
    writer.done(operation)


# ---- folds and scans ----


def write_nest(writer: Writer, nest: Nest, statements: list[str], fold: Fold | None) -> None:
    """Writes a nest, with a fold of what it makes."""
    loads, stores = [roots for roots, _ in nest.loads], [roots for roots, _ in nest.stores]
    if fold is None:
        writer.piece(["{", *over(writer, nest.shape, statements), "}"], reads=loads, writes=stores)
        return
    shape, axis, width, combined = nest.shape, fold.axis, writer.width, fold.combination
    inner, length, outer = math.prod(shape[axis + 1 :]), shape[axis], math.prod(shape[:axis])
    # Of each result an item folds what it has itself, and so many elements are left.
    kept = min(length, max(1, width // inner))
    is_whole = outer * inner == 1 and len(shape) == 1
    parts = fold.results
    if kept > 1 or is_whole:
        parts = [writer.scratch(one.element, outer * kept * inner) for one in combined.types]
    lines = _slots_folded(writer, shape, statements, fold, kept, parts)
    writer.piece(["{", *lines, "}"], reads=loads, writes=stores)
    half = kept // 2
    while half > is_whole:
        targets = fold.results if half == 1 else parts
        writer.piece(["{", *_halved(writer, combined, parts, targets, outer, half, inner, kept), "}"])
        half //= 2
    if is_whole:
        first = [f"{one}[0]" for one in parts]
        if kept > 1:
            writer.piece(combined.lines(first, [f"{one}[1]" for one in parts], fold.results))
        else:
            writer.piece([f"{to} = {one};" for to, one in zip(fold.results, first, strict=True)])


def _slots_folded(writer: Writer, shape: tuple[int, ...], statements: list[str], fold: Fold, kept: int, parts: list[str]) -> list[str]:
    """The nest of a fold, in which each item folds its own elements."""
    width, axis, combined = writer.width, fold.axis, fold.combination
    inner, steps = math.prod(shape[axis + 1 :]), shape[axis] // kept
    if steps == 1:
        here = flat(canonical(shape), shape)
        return over(writer, shape, [*statements, *(f"{to}[{here}] = {one};" for to, one in zip(parts, fold.values, strict=True))])
    # Neighbours that are left: whole rows of items, so that an element has the item that its part has.
    block = kept * inner
    slots = block // width
    names = [writer.fresh("x") for _ in parts]

    whole = math.prod(shape) // width

    def folded(slot: str, place: str) -> list[str]:
        full = f"{slot} / {slots} * {slots * steps} + step * {slots} + {slot} % {slots}" if slots > 1 else f"{slot} * {steps} + step"
        joined = combined.lines(names, fold.values, names, "step == 0")
        inside = _numbered(shape, [*statements, *joined], full, "at")
        return [
            *(f"{register(type.element)} {name};" for type, name in zip(combined.types, names, strict=True)),
            *_unrolled(whole, inside),
            f"for (i32 step = 0; step < {steps}; step++) {{",
            f"const i32 at = ({full}) * {width} + lane;",
            *inside,
            "}",
            *(f"{_own(to, slot, place)} = {name};" for to, name in zip(parts, names, strict=True)),
        ]

    return _loop(math.prod(shape) // steps, width, folded, steps)


def _halved(
    writer: Writer, combined: Combination, parts: list[str], targets: list[str], outer: int, half: int, inner: int, kept: int
) -> list[str]:
    """Statements that fold the second half of what is left into the first one."""

    def folded(slot: str, place: str) -> list[str]:
        first = f"{place} % {half * inner}" if outer > 1 else place
        at = f"(i32)((u32){place} / {half * inner}) * {kept * inner} + (i32)((u32){first})" if outer > 1 else place
        here, there = ([f"{one}[at + {moved}]" for one in parts] for moved in (0, half * inner))
        to = [_own(one, slot, place) for one in targets] if half == 1 and targets is not parts else here
        return [f"const i32 at = {at};", *combined.lines(here, there, to)]

    return _loop(outer * half * inner, writer.width, folded)


def scan(writer: Writer, inputs: list[Array], axis: int, is_reversed: bool, combined: Combination) -> list[Array]:
    """The results of a scan: each element takes in those that are 1, 2, 4 and so on places in front of it."""
    shape = inputs[0].type.shape or ()
    index, length = canonical(shape), shape[axis]
    now, step = inputs, 1
    while step < length or now is inputs:
        made = [writer.array(one.type) for one in inputs]
        here, there = index[axis], list(index)
        there[axis] = f"({here} + {step})" if is_reversed else f"({here} - {step})"
        guard = f"{here} >= {length - step}" if is_reversed else f"{here} < {step}"
        to = [one.at(index) for one in made]
        first = [f"{name} = {one.at(index)};" for name, one in zip(to, now, strict=True)]
        joined = combined.lines([one.at(there) for one in now], [one.at(index) for one in now], to)
        lines = [f"if ({guard}) {{", *first, "} else {", *joined, "}"] if length > 1 else first
        writer.piece(["{", *over(writer, shape, lines), "}"])
        now, step = made, 2 * step
    return now


# ---- histograms and products ----


def count(writer: Writer, made: Array, value: Value, mask: list[Value]) -> None:
    """A histogram: each item looks through all elements for its bins."""
    array, *masks = (writer.force(one) for one in (value, *mask))
    counted = f"{array.name}[n] == {{0}}" + "".join(f" && {one.name}[n]" for one in masks)
    bins = made.type.shape or ()
    lines = [
        "i32 found = 0;",
        f"for (i32 n = 0; n < {array.type.count}; n++) found += {counted.format(canonical(bins)[0])};",
        f"{made.at(canonical(bins))} = found;",
    ]
    writer.piece(["{", *over(writer, bins, lines), "}"])


def add_product(writer: Writer, element: str, a: Array, b: Array, sums: Array) -> None:
    """Adds a product: each item has its sums, and all go through the depth together."""
    shape, (rows, depth) = sums.type.shape or (), (a.type.shape or ())[-2:]
    columns = shape[-1]
    index = canonical(shape)
    part, to = flat(index[:-2], shape[:-2]), sums.at(index)
    x = f"{a.name}[({part}) * {rows * depth} + {index[-2]} * {depth} + n]"
    y = f"{b.name}[({part}) * {depth * columns} + n * {columns} + {index[-1]}]"
    line = f"{to} = otr_fma_{element}(({element}){x}, ({element}){y}, {to});"
    writer.piece([f"for (i32 n = 0; n < {depth}; n++) {{", *over(writer, shape, [line]), "}"])


# ---- where arrays are, and barriers ----


class Access(NamedTuple):
    """An access of a piece to memory of the group or the device."""

    memory: str | Roots
    at_own: bool
    """Whether an item touches its own elements alone."""
    writes: bool


_State = frozenset[Access] | None
"""Accesses since the last barrier; None where nothing gets to."""


def text(writer: Writer) -> tuple[str, int, dict[str, tuple[str, int]]]:
    """The whole text, how many bytes the arrays of all items have, and the arrays of the group with their types and sizes."""
    pieces = writer.pieces
    written = [roots for _, writes in writer.touched.values() for roots in writes]
    for at, (direct, roots) in writer.shared_loads.items():
        if not any(meet(roots, one, writer.module.overlap) for one in written):
            indent = re.match(r" *", pieces[at + 1])
            pieces[at], pieces[at + 1] = "", f"{indent[0] if indent else ''}{direct}"
    found = [list(_accesses(one)) for one in pieces]
    elsewhere = {one.memory for several in found for one in several if not one.at_own}
    for name in elsewhere:
        writer.share(str(name))
    slot_of, slots = writer.slots()
    touches: list[list[Access]] = []
    for at, several in enumerate(found):
        reads, writes = writer.touched.get(at, ((), ()))
        ours = [one._replace(memory=slot_of[str(one.memory)]) for one in several if one.memory in elsewhere]
        touches.append([*ours, *(Access(one, False, False) for one in reads), *(Access(one, False, True) for one in writes)])
    barriers = _Barriers(pieces, touches, writer.module.overlap).found()
    lines: list[str] = []
    for at, piece in enumerate(pieces):
        lines += [f"  {barriers[at]}"] if at in barriers else []
        lines += [piece] if piece else []

    def resolved(found: re.Match[str]) -> str:
        slot = slot_of[found[1]]
        if found[2] is None:
            return slot
        return f"{slot}[{found[3] if slots[slot][0].startswith(LOCAL) else found[2]}]"

    body = re.sub(r"\b(array\d+)\b(?:\[\$([^$]+)\$([^$]+)\$\])?", resolved, "\n".join(lines))
    shared = {name: (kind.removeprefix(LOCAL), size) for name, (kind, size) in slots.items() if kind.startswith(LOCAL)}
    private = {name: (kind, -(-size // writer.width)) for name, (kind, size) in slots.items() if name not in shared}
    declared = [f"  {kind} {name}[{size}];" for name, (kind, size) in private.items()]
    declared += [f"  {one}" for one in writer.hoisted or ()]
    return "\n".join([*declared, body]), sum(bytes_of(*one) for one in private.values()) * writer.width, shared


def _accesses(piece: str) -> Iterator[Access]:
    """The arrays of a piece, and what it does with them."""
    for found in re.finditer(r"\b(array\d+)\[", piece):
        depth, end = 1, found.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(piece[end], 0)
            end += 1
        yield Access(found[1], piece[found.end()] == "$", piece.startswith(" = ", end))


class _Barriers:
    """Finds where barriers are needed, by what each piece touches."""

    def __init__(self, pieces: list[str], touches: list[list[Access]], overlap: bool) -> None:
        self._pieces = [one.strip() for one in pieces]
        self._touches, self._overlap = touches, overlap
        self._barriers: dict[int, str] = {}
        self._breaks: list[list[_State]] = []
        self._jumps: dict[str, _State] = {}
        self._ends: dict[int, int] = {}
        opened = []
        for at, one in enumerate(self._pieces):
            if self._opens(at):
                opened.append(at)
            elif one == "}":
                self._ends[opened.pop()] = at

    def found(self) -> dict[int, str]:
        """The barrier in front of a piece."""
        self._walk(0, len(self._pieces), frozenset())
        return self._barriers

    def _opens(self, at: int) -> bool:
        return self._pieces[at].endswith("{") and "\n" not in self._pieces[at]

    def _walk(self, at: int, last: int, state: _State) -> _State:
        """Goes through pieces, and says what was done since the last barrier at their end."""
        while at < last:
            piece = self._pieces[at]
            if self._opens(at):
                end = self._ends[at]
                if piece.startswith("for"):
                    state = self._loop(at, end, state)
                else:
                    taken, state = self._walk(at + 1, end, state), state
                    if end + 1 < last and self._pieces[end + 1] == "else {":
                        at, end = end + 1, self._ends[end + 1]
                        state = self._walk(at + 1, end, state)
                    state = _joined(taken, state)
                at = end
            elif piece.startswith("goto "):
                label = piece.removeprefix("goto ").removesuffix(";")
                self._jumps[label], state = _joined(self._jumps.get(label), state), None
            elif piece.endswith(":;"):
                state = _joined(state, self._jumps.get(piece.removesuffix(":;")))
            elif piece == "return;":
                state = None
            elif piece.endswith(" break;"):
                self._breaks[-1].append(state)
            elif state is not None:
                state = self._passed(at, state)
            at += 1
        return state

    def _loop(self, at: int, end: int, state: _State) -> _State:
        while True:
            self._breaks.append([])
            again = _joined(state, self._walk(at + 1, end, state))
            breaks = self._breaks.pop()
            if again == state:
                break
            state = again
        return _joined(*breaks, *[] if self._pieces[at].startswith("for (;;)") else [state])

    def _passed(self, at: int, state: frozenset[Access]) -> frozenset[Access]:
        """The state behind a piece, with a barrier in front of it if it needs one."""
        touches = frozenset(self._touches[at])
        if "OTR_BARRIER_GLOBAL" in self._pieces[at]:
            return touches
        met = [one for one in state if any(self._conflict(one, other) for other in touches)]
        if any(not isinstance(one.memory, str) for one in met):
            self._barriers[at] = "OTR_BARRIER_GLOBAL();"
        elif met:
            self._barriers.setdefault(at, "OTR_BARRIER();")
        barrier = self._barriers.get(at)
        if barrier == "OTR_BARRIER_GLOBAL();":
            return touches
        return touches | (frozenset(one for one in state if not isinstance(one.memory, str)) if barrier else state)

    def _conflict(self, one: Access, other: Access) -> bool:
        if not (one.writes or other.writes) or (one.at_own and other.at_own):
            return False
        if isinstance(one.memory, str) or isinstance(other.memory, str):
            return one.memory == other.memory
        return meet(one.memory, other.memory, self._overlap)


def _joined(*states: _State) -> _State:
    """The accesses on any of several ways."""
    known = [one for one in states if one is not None]
    return frozenset().union(*known) if known else None
