"""Folds, scans, products, histograms, and functions of elements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from ..ttir import Block, Operation, Type, operations
from . import functions, lanes
from .nests import LAST_LANES, Combination, Fold, Line, is_innermost, lanes_of, statements_over
from .values import SMALL_FLOATS, Array, Expression, Index, Scalar, Value, canonical, flat, of_bits, register, rounded, stored
from .writer import Writer, writes

_WRITTEN_OUT = 4
"""A fold of so many elements is written out, where it leaves more than one."""


def combination(writer: Writer, region: list[Block], results: list[Type]) -> Combination:
    """A region of scalars as a function in C."""
    name = writer.fresh("combine")
    inner = Writer(writer.module)
    inner.values.update(writer.values)
    arguments = region[0].arguments
    for number, (id, type) in enumerate(arguments):
        inner.values[id] = Scalar(type, f"given{number}")
    for one in operations(region):
        if one.name == "tt.print":
            raise one.refused("stands in a function of elements, which does not know its program")
    has_checks = any(one.name == "tt.assert" for one in operations(region))
    result = register(results[0].element) if len(results) == 1 else f"{name}_results"

    def leave(values: list[Value]) -> None:
        text = ", ".join(one.at([]) for one in values)
        inner.line(f"return {text};" if len(values) == 1 else f"{{ const {result} results = {{{text}}}; return results; }}")

    inner.write_function(region, leave)
    body, _ = inner.text()
    given = ", ".join(f"{register(type.element)} given{n}" for n, (_, type) in enumerate(arguments))
    checks = ", OTR_GLOBAL i32* otr_failed" if has_checks else ""
    head = ""
    if len(results) > 1:
        fields = " ".join(f"{register(one.element)} r{number};" for number, one in enumerate(results))
        head = f"typedef struct {{ {fields} }} {result};\n"
    writer.module.texts[name] = f"{head}OTR_FUNCTION {result} {name}({given}{checks}) {{\n{body}\n}}\n"
    return Combination(name, results, has_checks)


@writes("tt.reduce")
def _reduce(writer: Writer, operation: Operation) -> None:
    inputs, axis = writer.operands(operation), operation.number("axis")
    shape = inputs[0].type.shape or ()
    rest = shape[:axis] + shape[axis + 1 :]
    combined = combination(writer, operation.regions[0], [Type(one.type.element) for one in inputs])
    if rest and shape[axis] <= _WRITTEN_OUT:
        _written_out(writer, operation, inputs, axis, rest, combined)
        return
    _, index = writer.enter(operation, shape, inputs)
    results: list[Value] = []
    for type in operation.types:
        results.append(writer.array(type) if rest else Scalar(type, writer.declare(type)))
    names = [one.name for one in results if isinstance(one, (Array, Scalar))]
    neighbours, tails = [], []
    if is_innermost(shape, axis) and writer.width == 1:
        width, rows = lanes_of(shape[axis]), math.prod(rest)
        neighbours = [writer.scratch(one.type.element, width) for one in inputs]
        if rows >= LAST_LANES and width >= LAST_LANES:
            tails = [writer.scratch(one.type.element, rows * LAST_LANES) for one in inputs]
    writer.close(Fold(axis, combined, [one.at(index) for one in inputs], names, neighbours, tails))
    writer.values.update(zip(operation.results, results, strict=True))


def _written_out(
    writer: Writer, operation: Operation, inputs: list[Value], axis: int, rest: tuple[int, ...], combined: Combination
) -> None:
    """A fold of few elements as an operation on elements of the result."""
    length = (inputs[0].type.shape or ())[axis]

    def picked(value: Value, number: int) -> Value:
        def made(index: Index) -> str:
            return value.at([*index[:axis], "0" if length == 1 else str(number), *index[axis:]])

        return Expression(Type(value.type.element, rest), made, (value,), moves=True)

    parts = [[picked(one, number) for one in inputs] for number in range(length)]
    nest, index = writer.enter(operation, rest, [one for part in parts for one in part])
    before = [one.at(index) for one in parts[0]]
    for part in parts[1:]:
        names = [writer.fresh("x") for _ in inputs]
        nest.lines += [Line(f"{register(one.type.element)} {name};") for one, name in zip(inputs, names, strict=True)]
        nest.lines += map(Line, combined.lines(before, [one.at(index) for one in part], names))
        before = names
    for id, type, text in zip(operation.results, operation.types, before, strict=True):
        writer.variable(id, type, text)


@writes("tt.scan")
def _scan(writer: Writer, operation: Operation) -> None:
    inputs = [writer.force(one) for one in writer.operands(operation)]
    writer.close()
    axis, is_reversed = operation.number("axis"), operation.attribute("reverse") == "true"
    shape = inputs[0].type.shape or ()
    length = shape[axis]
    combined = combination(writer, operation.regions[0], [Type(one.type.element) for one in inputs])
    if writer.width > 1:
        writer.values.update(zip(operation.results, lanes.scan(writer, inputs, axis, is_reversed, combined), strict=True))
        writer.done(operation)
        return
    results = [writer.array(one) for one in operation.types]
    index = canonical(shape)
    here, before = (f"{length - 1} - step", f"{length} - step") if is_reversed else ("step", "step - 1")

    def at(arrays: list[Array], place: str) -> list[str]:
        where = [*index[:axis], place, *index[axis + 1 :]]
        return [f"{one.name}[{flat(where, shape)}]" for one in arrays]

    first = [f"{to} = {one};" for to, one in zip(at(results, here), at(inputs, here), strict=True)]
    joined = combined.lines(at(results, before), at(inputs, here), at(results, here))
    outer = [one if dim < axis else "0" for dim, one in enumerate(index)]
    inner = [one if dim > axis else "0" for dim, one in enumerate(index)]
    one_step = statements_over(shape, inner, ["if (step == 0) {", *first, "} else {", *joined, "}"])
    steps = [f"for (i32 step = 0; step < {length}; step++) {{", *one_step, "}"]
    writer.piece(["{", *statements_over(shape, outer, steps), "}"])
    writer.values.update(zip(operation.results, results, strict=True))
    writer.done(operation)


@writes("tt.map_elementwise")
def _map(writer: Writer, operation: Operation) -> None:
    inputs, pack = writer.operands(operation), operation.number("pack")
    shape, types = operation.types[0].shape or (), [Type(one.element) for one in operation.types]
    combined = combination(writer, operation.regions[0], [one for one in types for _ in range(pack)])
    if pack == 1:
        nest, index = writer.enter(operation, shape, inputs)
        names = [writer.fresh("x") for _ in types]
        nest.lines += [Line(f"{register(one.element)} {name};") for one, name in zip(types, names, strict=True)]
        nest.lines += map(Line, combined.lines([], [one.at(index) for one in inputs], names))
        for id, type, name in zip(operation.results, operation.types, names, strict=True):
            writer.variable(id, type, name)
        return
    arrays = [writer.force(one) for one in inputs]
    writer.close()
    results = [writer.array(one) for one in operation.types]

    def packed(several: list[Array]) -> list[str]:
        return [f"{one.name}[first + {number}]" for one in several for number in range(pack)]

    count = math.prod(shape)
    written = combined.lines([], packed(arrays), packed(results))
    if writer.width > 1:
        writer.piece(["{", *lanes.over(writer, (count // pack,), [f"const i32 first = d0 * {pack};", *written]), "}"])
    else:
        writer.piece([f"for (i32 first = 0; first < {count}; first += {pack}) {{", *written, "}"])
    writer.values.update(zip(operation.results, results, strict=True))
    writer.done(operation)


@writes("tt.histogram")
def _histogram(writer: Writer, operation: Operation) -> None:
    value, *mask = writer.operands(operation)
    writer.close()
    made = writer.array(operation.types[0])
    writer.values[operation.results[0]] = made
    if writer.width > 1:
        lanes.count(writer, made, value, mask)
        writer.done(operation)
        return
    bins, shape = operation.types[0].count, value.type.shape or ()
    index = canonical(shape)
    fits = f"bin >= 0 && bin < {bins}" + (f" && {mask[0].at(index)}" if mask else "")
    counted = [f"const i64 bin = {value.at(index)};", f"if ({fits}) {made.name}[bin]++;"]
    cleared = [f"for (i32 bin = 0; bin < {bins}; bin++) {made.name}[bin] = 0;"]
    writer.piece(["{", *cleared, *statements_over(shape, index, counted), "}"])
    writer.done(operation)


# ---- products ----


@writes("tt.dot")
def _dot(writer: Writer, operation: Operation) -> None:
    x, y, initial = writer.operands(operation)
    _product(writer, operation, _factor(writer, x), _factor(writer, y), initial)


@writes("tt.dot_scaled")
def _dot_scaled(writer: Writer, operation: Operation) -> None:
    found = re.match(r"%\S+?( scale %\S+)?, %\S+?( scale %\S+)?, %\S+ lhs = (\w+) rhs = (\w+)", operation.text)
    if found is None:
        raise operation.refused(f"is written as is not known: {operation.text[:120]}")
    operands = writer.operands(operation)
    x, x_scale = operands.pop(0), operands.pop(0) if found[1] else None
    y, y_scale = operands.pop(0), operands.pop(0) if found[2] else None
    *batch, rows, columns = operation.types[0].shape or ()
    x_packs, y_packs = (operation.attribute(f"{side}_k_pack") != "false" for side in ("lhs", "rhs"))
    depth = (x.type.shape or ())[-1] * (2 if found[3] == "e2m1" and x_packs else 1)
    a = _scaled(writer, x, x_scale, found[3], (*batch, rows, depth), -1, x_packs)
    b = _scaled(writer, y, y_scale, found[4], (*batch, depth, columns), -2, y_packs)
    _product(writer, operation, a, b, operands[0])


def _scaled(
    writer: Writer, value: Value, scale: Value | None, form: str, shape: tuple[int, ...], axis: int, packs_axis: bool
) -> Array:
    """An operand as numbers of f32: a scale belongs to neighbours along the axis that is summed. Numbers of 4 bits are two in a byte,
    along that axis or the other one."""
    writer.module.texts["triton_of_e8m0"] = functions.SCALED
    packed = axis if packs_axis else -3 - axis

    def made(index: Index) -> str:
        if form == "e2m1":
            at, place = list(index), index[packed]
            at[packed] = f"({place} / 2)"
            number = f"triton_of_e2m1((u8){value.at(at)}, {place} % 2)"
        elif value.type.element in SMALL_FLOATS:
            number = of_bits(value.type.element, value.at(index))
        else:
            number = value.at(index)
        if scale is None:
            return number
        group = shape[axis] // (scale.type.shape or ())[-1]
        # Scales have the axis that is summed at the end, on both sides.
        at = [*index[:-2], index[-3 - axis], f"({index[axis]} / {group})"]
        factor = scale.at(at)
        is_small = scale.type.element in SMALL_FLOATS
        return f"({number} * {of_bits(scale.type.element, factor) if is_small else f'triton_of_e8m0((u8){factor})'})"

    inputs = (value,) if scale is None else (value, scale)
    return writer.force(Expression(Type("f32", shape), made, inputs, moves=True))


def _product(writer: Writer, operation: Operation, a: Array, b: Array, initial: Value) -> None:
    """Adds the product of two arrays to what is there at first."""
    type = operation.types[0]
    element = {"i32": "i32", "f64": "f64"}.get(type.element, "f32")
    writer.close()
    sums = _sums(writer, operation, initial, {a.name, b.name})
    *batch, rows, depth = a.type.shape or ()
    columns = (type.shape or ())[-1]
    operand = stored(a.type.element) if element == "i32" else element
    count = math.prod(batch)
    if writer.width == 1:
        name, texts = functions.product(element, operand, rows, columns, depth)
        writer.module.texts.update(texts)
    if writer.width > 1:
        lanes.add_product(writer, element, a, b, sums)
    elif count == 1:
        writer.line(f"{name}({a.name}, {b.name}, {sums.name});")
    else:
        parts = (f"{a.name} + n * {rows * depth}", f"{b.name} + n * {depth * columns}", f"{sums.name} + n * {rows * columns}")
        writer.piece([f"for (i32 n = 0; n < {count}; n++) {{", f"{name}({', '.join(parts)});", "}"])
    if type.element in ("f16", "bf16"):
        _each(writer, type.count, lambda at: f"{sums.name}[{at}] = {rounded(type.element, f'{sums.name}[{at}]')};")
    writer.values[operation.results[0]] = sums
    writer.done(operation)


def _factor(writer: Writer, value: Value) -> Array:
    """An operand of a product: an array of numbers."""
    array = writer.force(value)
    element = value.type.element
    if element not in SMALL_FLOATS:
        return array
    made = writer.array(value.type.of("f32"))
    _each(writer, value.type.count, lambda at: f"{made.name}[{at}] = {of_bits(element, f'{array.name}[{at}]')};")
    return made


def _each(writer: Writer, count: int, made: Callable[[str], str]) -> None:
    """Writes a statement for each of so many places."""
    if writer.width > 1:
        writer.piece(["{", *lanes.over(writer, (count,), [made("0" if count == 1 else "d0")]), "}"])
    else:
        writer.piece([f"for (i32 n = 0; n < {count}; n++) {{", made("n"), "}"])


def _sums(writer: Writer, operation: Operation, initial: Value, factors: set[str]) -> Array:
    """The array to which products are added, with what is there at first."""
    place = writer.in_place(operation.results[0], but=operation)
    initial = writer.settled(initial)
    if isinstance(initial, Array) and place is not None and initial.name == place.name:
        return place if place.name not in factors else _copied(writer, operation, initial)
    elsewhere = {one.name for one, at_own in initial.reads() if not at_own}
    if place is None or place.name in factors | elsewhere:
        return _copied(writer, operation, initial)
    writer.copy(place, initial)
    return place


def _copied(writer: Writer, operation: Operation, initial: Value) -> Array:
    made = writer.array(operation.types[0])
    writer.copy(made, initial)
    return made

