"""Loops, branches, calls and returns."""

from __future__ import annotations

import re

from ..ttir import Block, Operation, Type, operations
from .values import ANYWHERE, UNSIGNED, Expression, Index, Scalar, Value, register
from .writer import Loop, Writer, writes


def _carry(writer: Writer, type: Type, initial: Value, is_same_memory: bool) -> Value:
    """A place for what goes from iteration to iteration."""
    place = writer.place(type, initial)
    if type.is_pointer:
        place.roots = initial.roots if is_same_memory else ANYWHERE
    return place


def _step(body: Block, number: int) -> Operation | None:
    """The operation that moves what is carried, if that is an addition to it."""
    id, yielded = body.arguments[1 + number][0], body.operations[-1].operands[number]
    for one in body.operations:
        if yielded in one.results and one.name in ("tt.addptr", "arith.addi") and one.operands[0] == id:
            return one
    return None


def _is_uniform(writer: Writer, id: str, body: Block) -> bool:
    """Whether a tensor has one number in all places, and a C expression that can be told in the loop."""
    for one in body.operations:
        if id in one.results:
            return one.name == "tt.splat"
    value = writer.values.get(id)
    return isinstance(value, Expression) and value.operation in ("tt.splat", "constant")


def _moved(initial: Value, type: Type, counter: str) -> Expression:
    """A value that a loop moves by the same number everywhere: the first value, and the sum of the steps so far."""

    def wide(index: Index) -> str:
        return f"({initial.wide(index)} + {counter})"

    def made(index: Index) -> str:
        if type.is_pointer:
            return f"({initial.at(index)} + {counter})"
        return f"({register(type.element)}){wide(index)}"

    return Expression(type, made, (initial,), wide=None if type.is_pointer else wide, operation="carried", cost=1, roots=initial.roots)


@writes("scf.for")
def _for(writer: Writer, operation: Operation) -> None:
    writer.close()
    body = operation.regions[0][0]
    start, stop, step = (writer.value(one).at([]) for one in operation.operands[:3])
    carried = list(zip(body.arguments[1:], writer.operands(operation)[3:], strict=True))
    for one in operations(operation.regions[0]):
        # An operand from outside of a product in the loop is made an array once.
        for id in one.operands[:2] if one.name == "tt.dot" else ():
            if isinstance(writer.values.get(id), Expression):
                writer.force(writer.value(id))
    places: list[Value | None] = []
    counters: dict[int, tuple[str, str]] = {}
    for number, ((id, type), initial) in enumerate(carried):
        moving = _step(body, number)
        is_counted = type.is_tensor and (type.is_pointer or type.element in ("i32", "i64"))
        if is_counted and moving is not None and _is_uniform(writer, moving.operands[1], body):
            counter = writer.declare(Type("i64"), "moved")
            writer.line(f"{counter} = 0;")
            writer.values[id] = _moved(initial, type, counter)
            counters[number] = (counter, moving.operands[1])
            places.append(None)
        else:
            writer.values[id] = _carry(writer, type, initial, moving is not None)
            places.append(writer.values[id])
    (variable, kind), *_ = body.arguments
    name, last = writer.fresh("i_"), body.operations[-1]
    cast = f"({UNSIGNED[kind.element]})" if operation.text.startswith("unsigned") else ""
    writer.values[variable] = Scalar(kind, name)
    head = f"for ({register(kind.element)} {name} = {start}; {cast}{name} < {cast}{stop}; {name} += {step}) {{"
    with writer.braces(head, repeats=True):
        writer.loops.append(Loop(body, [id for (id, _), _ in carried], places))
        writer.write_all(body.operations[:-1])
        writer.close()
        writer.loops.pop()
        # A step is read before what it is made of changes.
        steps = {counter: writer.value(id).wide(["0"] * 8) for counter, id in counters.values()}
        yielded = [writer.value(one) for one in last.operands]
        kept = [number for number in range(len(places)) if number not in counters]
        moved = [(counter, writer.fresh("by")) for counter in steps]
        for counter, by in moved:
            writer.line(f"const i64 {by} = {steps[counter]};")
        writer.assign([place for place in places if place is not None], [yielded[number] for number in kept])
        for counter, by in moved:
            writer.line(f"{counter} += {by};")
    for id, (argument, _) in zip(operation.results, body.arguments[1:], strict=True):
        writer.values[id] = writer.values[argument]
    if counters:
        writer.lazy(operation)
    else:
        writer.done(operation)


@writes("scf.if")
def _if(writer: Writer, operation: Operation) -> None:
    writer.close()
    condition = writer.value(operation.operands[0]).at([])
    places = _places(writer, operation.types)
    writer.loops.append(None)
    for head, region in zip((f"if ({condition}) {{", "else {"), operation.regions, strict=False):
        with writer.braces(head):
            for one in region[0].operations:
                if one.name == "scf.yield":
                    writer.assign(places, writer.operands(one))
                else:
                    writer.write(one)
    writer.loops.pop()
    writer.values.update(zip(operation.results, places, strict=True))
    writer.done(operation)


def _places(writer: Writer, types: list[Type]) -> list[Value]:
    made = [writer.place(one) for one in types]
    for one in made:
        one.roots = ANYWHERE
    return made


@writes("scf.while")
def _while(writer: Writer, operation: Operation) -> None:
    writer.close()
    before, after = (one[0] for one in operation.regions)
    initial = writer.operands(operation)
    inner = [_carry(writer, type, value, False) for (_, type), value in zip(before.arguments, initial, strict=True)]
    results = _places(writer, operation.types)
    writer.values.update(zip((id for id, _ in before.arguments), inner, strict=True))
    writer.values.update(zip((id for id, _ in after.arguments), results, strict=True))
    writer.loops.append(None)
    writer.waits += 1
    with writer.braces("for (;;) {", repeats=True):
        for one in before.operations:
            if one.name == "scf.condition":
                writer.assign(results, writer.operands(one)[1:])
                writer.line(f"if (!({writer.value(one.operands[0]).at([])})) break;")
            else:
                writer.write(one)
        for one in after.operations:
            if one.name == "scf.yield":
                writer.assign(inner, writer.operands(one))
            else:
                writer.write(one)
    writer.waits -= 1
    writer.loops.pop()
    writer.values.update(zip(operation.results, results, strict=True))
    writer.done(operation)


# ---- jumps and calls ----


def _jump(writer: Writer, operation: Operation, number: int) -> None:
    label, given = operation.targets[number]
    target = writer.labels.get(label)
    if target is None:
        raise operation.refused(f"jumps to {label}, which stands in front of it")
    places = [writer.value(id) for id, _ in target[1].arguments]
    writer.assign(places, [writer.value(one) for one in given])
    writer.line(f"goto {target[0]};")


@writes("cf.br")
def _branch(writer: Writer, operation: Operation) -> None:
    writer.close()
    _jump(writer, operation, 0)


@writes("cf.cond_br")
def _conditional_branch(writer: Writer, operation: Operation) -> None:
    writer.close()
    for number, head in enumerate((f"if ({writer.value(operation.operands[0]).at([])}) {{", "else {")):
        with writer.braces(head):
            _jump(writer, operation, number)


@writes("tt.return", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return")
def _return(writer: Writer, operation: Operation) -> None:
    writer.close()
    assert writer.leave is not None
    writer.leave(writer.operands(operation))


@writes("tt.call")
def _call(writer: Writer, operation: Operation) -> None:
    """A function that is not part of its caller yet becomes so, since its tensors have no form as parameters."""
    writer.close()
    found = re.match(r'@(?:""|([^"(]+))', operation.text)
    name = (operation.strings[0] if operation.strings else found and found[1]) or ""
    function = writer.module.functions.get(name)
    if function is None or name in writer.callers:
        raise operation.refused(f"calls {name or 'a function'}, which {'calls itself' if function else 'is not there'}")
    results = _places(writer, operation.types)
    end = writer.fresh("end")
    blocks = _renamed(function.blocks, writer.fresh("@"))
    for (id, _), one in zip(blocks[0].arguments, operation.operands, strict=True):
        writer.values[id] = writer.value(one)
    outer = writer.leave, writer.loops
    has_jumps = len(blocks) > 1

    def leave(values: list[Value]) -> None:
        writer.assign(results, values)
        if has_jumps:
            writer.line(f"goto {end};")

    writer.leave, writer.loops = leave, []
    writer.callers.append(name)
    writer.write_blocks(blocks)
    writer.callers.pop()
    writer.leave, writer.loops = outer
    if has_jumps:
        writer.line(f"{end}:;")
    writer.values.update(zip(operation.results, results, strict=True))
    writer.done(operation)


def _renamed(blocks: list[Block], tag: str) -> list[Block]:
    """Blocks whose values and labels have names of their own."""
    made = []
    for block in blocks:
        inside = []
        for one in block.operations:
            targets = [(label + tag, [f"{id}{tag}" for id in given]) for label, given in one.targets]
            copy = Operation(
                one.name,
                [f"{id}{tag}" for id in one.results],
                [f"{id}{tag}" for id in one.operands],
                one.text,
                one.types,
                one.where,
                one.strings,
                [_renamed(region, tag) for region in one.regions],
                targets,
            )
            inside.append(copy)
        made.append(Block(block.label + tag, [(f"{id}{tag}", type) for id, type in block.arguments], inside))
    return made
