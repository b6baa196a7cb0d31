"""Values that are seen in another layout, masks, memory, and atomic operations."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..ttir import Operation, Refused
from . import functions, lanes
from .nests import Line, declared
from .values import (
    ANYWHERE,
    BITS,
    FLOATS,
    UNSIGNED,
    Array,
    Expression,
    Index,
    Roots,
    Scalar,
    Value,
    canonical,
    flat,
    literal,
    loaded,
    meet,
    memory,
    of_bits,
    put,
    register,
    to_bits,
    unflat,
)
from .writer import Writer, writes

# ---- values of the program ----


@writes("arith.constant")
def _constant(writer: Writer, operation: Operation) -> None:
    type, id = operation.types[0], operation.results[0]
    text = operation.text.split(" :")[0].strip()
    if not type.is_tensor:
        writer.values[id] = Scalar(type, literal(text, type.element))
        writer.done(operation)
        return
    found = re.fullmatch(r"dense<([^\[\]\"]+)>", text)
    if found is None:
        raise operation.refused(f"is a constant of several values: {text[:60]}")
    _everywhere(writer, operation, literal(found[1], type.element))


@writes("ub.poison")
def _poison(writer: Writer, operation: Operation) -> None:
    type = operation.types[0]
    text = f"({register(type.element)})0"
    if type.is_tensor:
        _everywhere(writer, operation, text)
    else:
        writer.values[operation.results[0]] = Scalar(type, text)
        writer.done(operation)


def _everywhere(writer: Writer, operation: Operation, text: str) -> None:
    writer.lazy(operation)
    writer.values[operation.results[0]] = Expression(operation.types[0], lambda index: text, operation="constant")


@writes("tt.get_program_id", "tt.get_num_programs")
def _place_in_grid(writer: Writer, operation: Operation) -> None:
    name = "program" if operation.name == "tt.get_program_id" else "grid"
    writer.scalar(operation.results[0], operation.types[0], f"{name}[{'xyz'.index(operation.words()[0])}]")
    writer.done(operation)


@writes("tt.make_range")
def _range(writer: Writer, operation: Operation) -> None:
    start = operation.number("start")

    def made(index: Index) -> str:
        return f"({start} + {index[0]})" if start else index[0]

    writer.lazy(operation)
    writer.values[operation.results[0]] = Expression(operation.types[0], made, wide=made, operation=operation.name)


# ---- layouts ----


def _view(writer: Writer, operation: Operation, value: Value, moved: Callable[[Index], Index], number: int = 0) -> None:
    """A result that has the elements of a value at other indices."""
    writer.lazy(operation)
    writer.values[operation.results[number]] = Expression(
        operation.types[number],
        lambda index: value.at(moved(index)),
        (value,),
        wide=lambda index: value.wide(moved(index)),
        moves=True,
        operation=operation.name,
    )


@writes("tt.splat")
def _splat(writer: Writer, operation: Operation) -> None:
    _view(writer, operation, writer.value(operation.operands[0]), lambda index: [])


@writes("tt.unsplat")
def _unsplat(writer: Writer, operation: Operation) -> None:
    value = writer.force(writer.value(operation.operands[0]))
    writer.scalar(operation.results[0], operation.types[0], value.at(["0"] * len(value.type.shape or ())), value.roots)
    writer.done(operation)


@writes("tt.broadcast")
def _broadcast(writer: Writer, operation: Operation) -> None:
    value = writer.value(operation.operands[0])
    shape = value.type.shape or ()
    _view(writer, operation, value, lambda index: ["0" if size == 1 else one for size, one in zip(shape, index, strict=True)])


@writes("tt.expand_dims")
def _expand(writer: Writer, operation: Operation) -> None:
    axis = operation.number("axis")
    _view(writer, operation, writer.value(operation.operands[0]), lambda index: [*index[:axis], *index[axis + 1 :]])


@writes("tt.trans")
def _transpose(writer: Writer, operation: Operation) -> None:
    order = operation.numbers("order")
    _view(writer, operation, writer.value(operation.operands[0]), lambda index: [index[order.index(dim)] for dim in range(len(order))])


@writes("tt.reshape")
def _reshape(writer: Writer, operation: Operation) -> None:
    value = writer.value(operation.operands[0])
    before, after = value.type.shape or (), operation.types[0].shape or ()
    if [one for one in before if one > 1] == [one for one in after if one > 1]:

        def moved(index: Index) -> Index:
            left = [one for one, size in zip(index, after, strict=True) if size > 1]
            return [left.pop(0) if size > 1 else "0" for size in before]

    else:
        # Values of many operations are not made anew with an index that has divisions.
        value = writer.force(value) if value.cost > 2 else value

        def moved(index: Index) -> Index:
            return unflat(flat(index, after), before)

    _view(writer, operation, value, moved)


@writes("tt.join")
def _join(writer: Writer, operation: Operation) -> None:
    x, y = writer.operands(operation)
    writer.lazy(operation)
    writer.values[operation.results[0]] = Expression(
        operation.types[0],
        lambda index: f"({index[-1]} == 0 ? {x.at(index[:-1])} : {y.at(index[:-1])})",
        (x, y),
        moves=True,
        operation=operation.name,
        cost=1,
    )


@writes("tt.split")
def _split(writer: Writer, operation: Operation) -> None:
    value = writer.value(operation.operands[0])
    if operation.types[0].is_tensor:
        for number in (0, 1):
            _view(writer, operation, value, lambda index, half=str(number): [*index, half], number)  # type: ignore[misc]
        return
    array = writer.force(value)
    for number, (id, type) in enumerate(zip(operation.results, operation.types, strict=True)):
        writer.scalar(id, type, array.at([str(number)]), array.roots)
    writer.done(operation)


@writes("tt.cat")
def _concatenate(writer: Writer, operation: Operation) -> None:
    x, y = writer.operands(operation)
    type, count = operation.types[0], x.type.count
    made = writer.array(type)
    made.roots = x.roots | y.roots
    for start, value in ((0, x), (count, y)):
        writer.settle(value)
        shape = value.type.shape or ()
        index = canonical(shape)
        writer.piece(writer.over(shape, [f"{made.name}[{start} + {flat(index, shape)}] = {value.at(index)};"]))
    writer.done(operation)
    writer.values[operation.results[0]] = made


# ---- masks that are true everywhere ----


def _grows(value: Value) -> str | None:
    """`constant` or `grows` if an integer never falls along any dimension, as long as it does not wrap."""
    if isinstance(value, Scalar):
        return "constant"
    if not isinstance(value, Expression):
        return None
    parts = [_grows(one) for one in value.inputs]
    if value.operation in ("constant", "tt.splat"):
        return "constant"
    if value.operation == "tt.make_range":
        return "grows"
    if value.operation in ("tt.broadcast", "tt.expand_dims", "arith.extsi", "carried"):
        return parts[0]
    if value.operation == "arith.addi" and None not in parts:
        return "grows" if "grows" in parts else "constant"
    if value.operation == "arith.subi" and parts[1] == "constant":
        return parts[0]
    if value.operation == "arith.muli":
        if parts == ["constant", "constant"]:
            return "constant"
        for factor, other in ((0, 1), (1, 0)):
            one = value.inputs[factor]
            if isinstance(one, Expression) and one.operation == "constant" and re.fullmatch(r"(\(i64\))?\d+", one.at([])):
                return parts[other]
    return None


def _holds(value: Value) -> str | None:
    """The C expression of when a mask is true everywhere, if that can be told by a corner."""
    if isinstance(value, Scalar):
        return value.name
    if not isinstance(value, Expression):
        return None
    if value.operation in ("tt.broadcast", "tt.expand_dims", "tt.splat"):
        return _holds(value.inputs[0])
    if value.operation == "constant":
        return value.at([])
    if value.operation == "arith.andi":
        parts = [_holds(one) for one in value.inputs]
        return None if None in parts else f"({parts[0]} && {parts[1]})"
    return _corner(value) if value.operation == "arith.cmpi" else None


_SIGNS = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}


def _corner(value: Expression) -> str | None:
    """The same for a comparison of numbers of which one grows and the other is the same everywhere."""
    sign = _SIGNS.get(value.predicate)
    x, y = value.inputs
    kinds = (_grows(x), _grows(y))
    if sign is None or None in kinds or kinds == ("grows", "grows"):
        return None
    first, last = ["0"] * len(value.type.shape or ()), [str(size - 1) for size in value.type.shape or ()]
    is_less = value.predicate in ("slt", "sle")
    at = last if (kinds[0] == "grows") == is_less else first
    if kinds == ("constant", "constant"):
        at = first
    growing = x if kinds[0] == "grows" else y
    fits = f"triton_fits({growing.wide(first)}, {growing.wide(last)}) && " if growing.type.element == "i32" else ""
    return f"({fits}{x.wide(at)} {sign} {y.wide(at)})"


# ---- memory ----


def _may_meet(roots: Roots, pointer: str, others: list[tuple[Roots, str]], overlap: bool) -> bool:
    """Whether a pointer may lead to what others lead to, without being one of them."""
    return any(other != pointer and meet(roots, other_roots, overlap) for other_roots, other in others)


def _by_run(pointer: Value, index: Index) -> tuple[str, str]:
    """A pointer at an index where numbers that it is made of are runs, and the condition of that. A compiler sees neighbours so."""
    text, conditions = pointer.at(index), []
    for name, last in {one.name: one.type.count - 1 for one, _ in pointer.reads() if isinstance(one, Array) and one.is_run}.items():
        text, count = re.subn(rf"\(i64\){name}\[([^\[\]]*)\]", rf"((i64){name}[0] + \1)", text)
        if count:
            conditions.append(f"({name}[0] >= 0 && {name}[{last}] - {name}[0] == {last})")
    return text, " && ".join(conditions) or "1"


def _masked(text: str, masked: str, condition: str, mask: Value | None) -> Line:
    """A statement under a mask, or under the condition that its pointer demands."""
    holds = "1" if mask is None else _holds(mask)
    if holds is None:
        return Line(text, masked)
    conditions = [one for one in (condition, holds) if one != "1"]
    return Line(text, masked, " && ".join(conditions)) if conditions else Line(text)


def _looks(writer: Writer, pointer: Value, at: str) -> str | None:
    """The condition that an address lies in a tensor that was given to the kernel, which fails the stream where it does not; None if
    nobody asks, or nobody knows which tensors they are."""
    if not writer.module.looks or not pointer.roots or ANYWHERE & pointer.roots:
        return None
    within = [f"triton_within({at}, sizeof(*{at}), argument{one}, first{one}, behind{one})" for one in sorted(pointer.roots, key=str)]
    return f"triton_looked({' || '.join(within)}, otr_failed)"


def _where(*conditions: str | None) -> str:
    return " && ".join(one for one in conditions if one)


@writes("tt.load")
def _load(writer: Writer, operation: Operation) -> None:
    pointer, *rest = writer.operands(operation)
    type, id = operation.types[0], operation.results[0]
    element = type.element
    if not type.is_tensor:
        writer.settle(*rest)
        if writer.nest and writer.nest.stores:
            writer.close()
        text = loaded(element, pointer.at([]))
        if where := _where(rest[0].at([]) if rest else None, _looks(writer, pointer, pointer.at([]))):
            other = rest[1].at([]) if len(rest) > 1 else f"({register(element)})0"
            text = f"{where} ? {text} : {other}"
        if writer.width > 1:
            name = writer.declare(type)
            lanes.told(writer, name, type, text, pointer.roots, always=writer.waits > 0)
            writer.values[id] = Scalar(type, name, ANYWHERE)
        else:
            writer.scalar(id, type, text, ANYWHERE)
        writer.done(operation)
        return
    if writer.nest and _may_meet(pointer.roots, operation.operands[0], writer.nest.stores, writer.module.overlap):
        writer.close()
    nest, index = writer.enter(operation, type.shape or (), [pointer, *rest])
    nest.loads.append((pointer.roots, operation.operands[0]))
    plain, condition = _by_run(pointer, index)
    made = writer.variable(id, type, loaded(element, plain), ANYWHERE)
    masked, looks = loaded(element, pointer.at(index)), _looks(writer, pointer, pointer.at(index))
    if where := _where(rest[0].at(index) if rest else None, looks):
        other = rest[1].at(index) if len(rest) > 1 else f"({register(element)})0"
        masked = f"{where} ? {masked} : {other}"
    masked = declared(element, made.name, masked).text
    nest.lines[-1] = Line(masked, masked) if looks else _masked(nest.lines[-1].text, masked, condition, rest[0] if rest else None)


@writes("tt.store")
def _store(writer: Writer, operation: Operation) -> None:
    pointer, value, *mask = writer.operands(operation)
    element = pointer.type.pointee
    if not pointer.type.is_tensor:
        writer.close()
        where = _where(mask[0].at([]) if mask else None, _looks(writer, pointer, pointer.at([])))
        guard = f"if ({where}) " if where else ""
        text = guard + put(element, pointer.at([]), value.at([]))
        writer.line(lanes.by_one(writer, text), writes=[pointer.roots])
        writer.done(operation)
        return
    id, overlap = operation.operands[0], writer.module.overlap
    if writer.nest and any(_may_meet(pointer.roots, id, one, overlap) for one in (writer.nest.loads, writer.nest.stores)):
        writer.close()
    nest, index = writer.enter(operation, pointer.type.shape or (), [pointer, value, *mask])
    nest.stores.append((pointer.roots, id))
    plain, condition = _by_run(pointer, index)
    text, masked = (put(element, one, value.at(index)) for one in (plain, pointer.at(index)))
    looks = _looks(writer, pointer, pointer.at(index))
    where = _where(mask[0].at(index) if mask else None, looks)
    masked = f"if ({where}) {masked}" if where else masked
    nest.lines.append(Line(masked, masked) if looks else _masked(text, masked, condition, mask[0] if mask else None))


@writes("tt.gather")
def _gather(writer: Writer, operation: Operation) -> None:
    array, places = writer.force(writer.value(operation.operands[0])), writer.value(operation.operands[1])
    axis = operation.number("axis")
    nest, index = writer.enter(operation, places.type.shape or (), [places])
    nest.read_elsewhere.add(array.name)
    index[axis] = f"({places.at(index)})"
    writer.variable(operation.results[0], operation.types[0], array.at(index), array.roots)


# ---- atomic operations ----

_WHOLE = ("i32", "i64", "f32", "f64")
"""Elements for which the dialect has all atomic operations."""

_CHANGES = {
    **{one: one for one in ("add", "and", "or", "xor", "max", "min")},
    "fadd": "add",
    "umax": "max",
    "umin": "min",
    "exch": "exchange",
}
"""Atomic operations and what the dialect calls them."""


def _pointer(pointee: str, pointer: str) -> str:
    return f"(OTR_GLOBAL {pointee}*)({pointer})"


def _changed(kind: str, element: str, pointer: str, value: str) -> str:
    """The call of an atomic change."""
    name, of = f"otr_atomic_{_CHANGES[kind]}", register(element)
    if kind in ("umax", "umin"):
        unsigned = UNSIGNED[element]
        return f"({of}){name}_{unsigned}({_pointer(unsigned, pointer)}, ({unsigned}){value})"
    if element in _WHOLE:
        return f"{name}_{element}({_pointer(element, pointer)}, {value})"
    if _CHANGES[kind] != "add":
        raise Refused(f"there is no {kind} of {element}")
    return f"({of}){name}_{element}({_pointer(memory(element), pointer)}, {value})"


def _by_bits(name: str, element: str, pointer: str, *values: str) -> str:
    """The call of an atomic operation for which smaller elements are bits."""
    if element in _WHOLE:
        return f"otr_atomic_{name}_{element}({', '.join([_pointer(element, pointer), *values])})"
    bits = f"u{BITS[element]}"
    given = [_pointer(bits, pointer), *(f"({bits}){to_bits(element, one) if element in FLOATS else one}" for one in values)]
    call = f"otr_atomic_{name}_{bits}({', '.join(given)})"
    return call if name == "store" else of_bits(element, call) if element in FLOATS else f"({register(element)}){call}"


def _atomic(
    writer: Writer, operation: Operation, order: str, call: Callable[[str, list[str]], str], given: list[Value], mask: list[Value]
) -> None:
    """Calls an atomic function for each element, one after the other, under a mask. The call may give nothing."""
    writer.close()
    pointer = writer.value(operation.operands[0])
    shape = pointer.type.shape
    index = canonical(shape) if shape is not None else []
    called = call(pointer.at(index), [one.at(index) for one in given])
    where = _where(
        mask[0].at(index) if mask and _holds(mask[0]) != "1" else None, _looks(writer, pointer, pointer.at(index))
    )
    guard = f"if ({where}) " if where else ""
    if writer.width > 1:
        lanes.atomic(writer, operation, order, pointer, called, guard)
        return
    text = f"{called};"
    if order in ("release", "acq_rel"):
        writer.line("OTR_RELEASE();")
    made: Value | None = None
    if operation.results:
        type = operation.types[0]
        made = writer.array(type) if type.is_tensor else Scalar(type, writer.declare(type))
        made.roots = ANYWHERE
        text = f"{made.at(index)} = {text}"
        writer.values[operation.results[0]] = made
    cleared = [f"{made.at(index)} = 0;"] if made is not None and guard else []
    statements = writer.over(shape or (), [*cleared, guard + text])
    writer.piece(["{", *statements, "}"] if shape is not None else statements)
    if order in ("acquire", "acq_rel"):
        writer.line("OTR_ACQUIRE();")
    writer.done(operation)


@writes("tt.atomic_rmw")
def _atomic_change(writer: Writer, operation: Operation) -> None:
    pointer, value, *mask = writer.operands(operation)
    kind, order = operation.words()[:2]
    element = pointer.type.pointee
    _atomic(writer, operation, order, lambda at, given: _changed(kind, element, at, given[0]), [value], mask)


@writes("tt.atomic_cas")
def _atomic_swap(writer: Writer, operation: Operation) -> None:
    pointer, *values = writer.operands(operation)
    element = pointer.type.pointee
    _atomic(writer, operation, operation.words()[0], lambda at, given: _by_bits("cas", element, at, *given), values, [])


@writes("tt.atomic_load")
def _atomic_load(writer: Writer, operation: Operation) -> None:
    pointer, *mask = writer.operands(operation)
    element = pointer.type.pointee
    _atomic(writer, operation, operation.words()[0], lambda at, given: _by_bits("load", element, at), [], mask)


@writes("tt.atomic_store")
def _atomic_store(writer: Writer, operation: Operation) -> None:
    pointer, value, *mask = writer.operands(operation)
    element = pointer.type.pointee
    _atomic(writer, operation, operation.words()[0], lambda at, given: _by_bits("store", element, at, *given), [value], mask)


_NANOSECONDS_OF_LOOK = 4
"""The rough time of a look: devices have no clock that a kernel reads."""


@writes("tt.atomic_poll")
def _atomic_poll(writer: Writer, operation: Operation) -> None:
    pointer, expected, *limit = writer.operands(operation)
    looks = f"(i64)((u64){limit[0].at([])} / {_NANOSECONDS_OF_LOOK})" if limit else "(i64)-1"
    element = pointer.type.pointee
    name = f"triton_poll_{element}"
    writer.module.texts[name] = functions.poll(name, register(element), memory(element), _by_bits("load", element, "p"))
    _atomic(writer, operation, operation.words()[0], lambda at, given: f"{name}({at}, {given[0]}, {looks})", [expected], [])


# ---- what a program asks and promises ----


@writes("tt.assert")
def _assert(writer: Writer, operation: Operation) -> None:
    writer.module.has_checks = True
    message = f"{operation.where}: {operation.strings[0] if operation.strings else 'an assertion'}"
    writer.module.messages.append(message[:200])
    condition = writer.value(operation.operands[0])
    if not condition.type.is_tensor:
        writer.settle(condition)
        writer.line(f"OTR_CHECK({condition.at([])}, OTR_EXECUTION);")
        writer.done(operation)
        return
    nest, index = writer.enter(operation, condition.type.shape or (), [condition])
    text = f"OTR_CHECK({condition.at(index)}, OTR_EXECUTION);"
    nest.lines.append(Line(text, text))


@writes("llvm.intr.assume")
def _assume(writer: Writer, operation: Operation) -> None:
    writer.done(operation)


@writes("ttg.barrier")
def _barrier(writer: Writer, operation: Operation) -> None:
    # A program of one item has done what stands in front of a barrier when it does what stands behind.
    writer.close()
    if writer.width > 1:
        writer.line("OTR_BARRIER_GLOBAL();")
    writer.done(operation)


@writes("tt.elementwise_inline_asm")
def _refuse(writer: Writer, operation: Operation) -> None:
    raise operation.refused("is inline assembly, which is for devices of one vendor")

