"""Writes one function of a module: its lines, its loop nests, and its arrays.

Elementwise operations of one shape go into one loop nest, which stays open while the next operation can join it. A value of the
nest gets an array only where something reads it behind the nest. What a nest or a fold is made of is one piece of text: arrays
that are used in one piece are alive at the same time, and others may share memory.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..ttir import Block, Function, Operation, Refused, Type
from ..ttir import operations as walk
from . import lanes
from .expressions import EXPRESSIONS, expression
from .functions import LARGE
from .nests import Fold, Line, Nest, declared, loops, statements_over
from .values import ANYWHERE, Array, Expression, Index, Roots, Scalar, Value, Variable, bytes_of, canonical, flat, register, stored

HANDLERS: dict[str, Callable[[Writer, Operation], None]] = {}
"""For an operation that is no plain expression: what writes it."""

MOST_ON_STACK = 1 << 20
"""Bytes of arrays that a program may have on the stack: threads of a driver have stacks of 2 MiB."""

_MOST_COST = 24
"""Operations that are rather done anew at each use than kept in an array, at most."""

_MADE_ANEW = set(
    "arith.addi arith.subi arith.muli arith.andi arith.ori arith.xori arith.cmpi arith.extsi arith.extui arith.trunci "
    "arith.index_cast tt.addptr".split()
)
"""Operations on indices, masks and addresses, which are expressions of the index."""
_ADDRESSES = ("arith.addi", "arith.subi", "arith.muli", "arith.extsi", "tt.addptr")
"""Operations that are so with loaded numbers, too: an address that is made of one is no array."""
_LAYOUTS = set("arith.constant tt.make_range tt.splat tt.broadcast tt.expand_dims tt.trans tt.reshape tt.join".split())
"""Operations that are expressions of the index in any nest."""
_WIDE_SIGNS = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*"}


def writes(*names: str) -> Callable[[Callable[[Writer, Operation], None]], Callable[[Writer, Operation], None]]:
    """Notes what writes operations."""

    def note(handler: Callable[[Writer, Operation], None]) -> Callable[[Writer, Operation], None]:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return note


@dataclass
class Module:
    """The state that the functions of a module share."""

    functions: dict[str, Function]
    overlap: bool
    """Whether memory of different arguments may be the same."""
    looks: bool = False
    """Whether each access is looked at before it is made."""
    texts: dict[str, str] = field(default_factory=dict)
    """Functions in C, by name."""
    messages: list[str] = field(default_factory=list)
    """The messages of assertions."""
    has_checks: bool = False
    _names: int = 0

    def fresh(self, prefix: str) -> str:
        """A name that is used nowhere else."""
        self._names += 1
        return f"{prefix}{self._names}"


@dataclass(eq=False)
class Loop:
    """A loop of the program."""

    body: Block
    arguments: list[str]
    places: list[Value | None]
    """The variables and arrays that go from iteration to iteration."""


class Writer:
    """Writes a function."""

    def __init__(self, module: Module, width: int = 1) -> None:
        self.module = module
        self.width = width
        """Items that run a program together."""
        self.values: dict[str, Value] = {}
        self.nest: Nest | None = None
        self.loops: list[Loop | None] = []
        """Loops around this place; None for a branch, in which nothing is made in place."""
        self.hoisted: list[str] | None = None
        """Declarations in front of everything, where jumps may not pass one."""
        self.labels: dict[str, tuple[str, Block]] = {}
        """Blocks that are still to be written, and their labels in C."""
        self.leave: Callable[[list[Value]], None] | None = None
        """Writes the end of the function, with its results."""
        self.callers: list[str] = []
        self._users: dict[str, list[Operation]] = {}
        self._states: dict[Operation, str] = {}
        self.pieces: list[str] = []
        self.touched: dict[int, tuple[list[Roots], list[Roots]]] = {}
        """Memory of the device that a piece reads and writes."""
        self.shared_loads: dict[int, tuple[str, Roots]] = {}
        """Pieces by which one item tells the others a number of the device's memory, what each item may do in their place, and the memory."""
        self.waits = 0
        """Loops around this place that may wait for other programs."""
        self._depth = 1
        self._repeated: list[tuple[int, int]] = []
        """Pieces that a loop of the program repeats."""
        self._arrays: dict[str, tuple[str, int]] = {}
        self._forced: list[dict[Value, Array]] = [{}]

    # ---- text ----

    def line(self, text: str, reads: Iterable[Roots] = (), writes: Iterable[Roots] = ()) -> None:
        """A piece of one line."""
        self.piece([text], reads, writes)

    def piece(self, lines: Iterable[str], reads: Iterable[Roots] = (), writes: Iterable[Roots] = ()) -> None:
        """Lines that are one piece, and the memory of the device that it reads and writes."""
        self.touched[len(self.pieces)] = (list(reads), list(writes))
        depth, written = self._depth, []
        for one in lines:
            depth -= one.startswith("}")
            written.append("  " * depth + one)
            depth += one.endswith("{")
        self.pieces.append("\n".join(written))

    @contextlib.contextmanager
    def braces(self, head: str, repeats: bool = False) -> Iterator[None]:
        """A block of statements, which a loop may repeat."""
        start = len(self.pieces)
        self.line(head)
        self._depth += 1
        self._forced.append({})
        yield
        self.close()
        self._forced.pop()
        self.line("}")
        self._depth -= 1
        if repeats:
            self._repeated.append((start, len(self.pieces) - 1))

    def fresh(self, prefix: str) -> str:
        return self.module.fresh(prefix)

    def declare(self, type: Type, prefix: str = "v") -> str:
        """A C variable that is set later."""
        name = self.fresh(prefix)
        if self.hoisted is None:
            self.line(f"{register(type.element)} {name};")
        else:
            self.hoisted.append(f"{register(type.element)} {name};")
        return name

    def scalar(self, id: str, type: Type, text: str, roots: Roots = frozenset()) -> None:
        """Keeps a scalar in a variable."""
        if self.hoisted is None:
            name = self.fresh("v")
            self.line(declared(type.element, name, text).text)
        else:
            name = self.declare(type)
            self.line(f"{name} = {text};")
        self.values[id] = Scalar(type, name, roots)

    def array(self, type: Type) -> Array:
        """A new array."""
        name = self.fresh("array")
        self._arrays[name] = (stored(type.element), type.count)
        return Array(type, name)

    def scratch(self, element: str, count: int) -> str:
        """The name of a new array that one piece uses alone."""
        return self.array(Type(element, (count,))).name

    def share(self, array: str) -> None:
        """Puts an array into memory of the group."""
        kind, count = self._arrays[array]
        if kind.startswith("OTR_GLOBAL"):
            raise lanes.NotInLanes("the memory of a group has no addresses")
        self._arrays[array] = (lanes.LOCAL + kind, count)

    def text(self) -> tuple[str, int]:
        """The whole text, and how many bytes its arrays have."""
        slot_of, slots = self.slots()
        size = sum(bytes_of(kind, count) for kind, count in slots.values())
        place = ""
        if size > MOST_ON_STACK:
            self.module.texts["TRITON_LARGE"] = LARGE
            place = "TRITON_LARGE "
        lines = [f"  {place}{kind} {name}[{count}] __attribute__((aligned(64)));" for name, (kind, count) in slots.items()]
        lines += [f"  {one}" for one in self.hoisted or ()]
        body = re.sub(r"\barray\d+\b", lambda found: slot_of[found[0]], "\n".join(self.pieces))
        return "\n".join([*lines, body]), size

    # ---- memory of arrays ----

    def _lives(self) -> dict[str, tuple[int, int]]:
        """The first and the last piece for which an array is alive."""
        lives: dict[str, tuple[int, int]] = {}
        uses: dict[str, list[int]] = {}
        for at, piece in enumerate(self.pieces):
            for name in set(re.findall(r"\barray\d+\b", piece)):
                uses.setdefault(name, []).append(at)
        for name, places in uses.items():
            first, last = places[0], places[-1]
            # A value that is made before a loop and read in it is alive until the loop ends. Inner loops come first.
            for start, end in self._repeated:
                if first < start <= last <= end:
                    last = end
            lives[name] = (first, last)
        return lives

    def slots(self) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
        """For each array its memory, and type and size of each memory: arrays that are never alive together may have the same.

        Only those of one type may: compilers take it that an f32 and an i32 are never at one address."""
        slots: dict[str, tuple[str, int]] = {}
        slot_of: dict[str, str] = {}
        ends: dict[str, int] = {}
        for name, (first, last) in sorted(self._lives().items(), key=lambda one: (one[1], one[0])):
            kind, count = self._arrays[name]
            free = [one for one in slots if slots[one][0] == kind and ends[one] < first]
            slot = min(free, key=lambda one: abs(slots[one][1] - count)) if free else self.fresh("slot")
            slots[slot] = (kind, max(count, slots[slot][1] if free else 0))
            ends[slot], slot_of[name] = last, slot
        return slot_of, slots

    # ---- who reads a value ----

    def note(self, blocks: list[Block]) -> None:
        """Notes which operations read which values."""
        for block in blocks:
            for operation in block.operations:
                for id in operation.operands:
                    self._users.setdefault(id, []).append(operation)
                for _, given in operation.targets:
                    for id in given:
                        self._users.setdefault(id, []).append(operation)
                for region in operation.regions:
                    self.note(region)

    def done(self, operation: Operation) -> None:
        """An operation has read its operands for the last time."""
        self._states[operation] = "done"

    def lazy(self, operation: Operation) -> None:
        """An operation reads its operands where its results are read."""
        self._states[operation] = "lazy"

    def _is_finished(self, id: str, nest: Nest | None, but: Operation | None) -> bool:
        """Whether nothing reads a value behind a nest or an operation."""
        for user in self._users.get(id, ()):
            state = self._states.get(user)
            if user is but or state == "done" or (nest is not None and user in nest.operations):
                continue
            if state != "lazy" or not all(self._is_finished(one, nest, but) for one in user.results):
                return False
        return True

    def in_place(self, id: str, nest: Nest | None = None, but: Operation | None = None) -> Array | None:
        """The array of the loop around, if a value is only made to go into it, and nobody needs what is there."""
        loop = self.loops[-1] if self.loops else None
        inside = nest.operations if nest else set()
        left = [one for one in self._users.get(id, ()) if one not in inside and one is not but]
        if loop is None or len(left) != 1 or left[0].operands.count(id) != 1:
            return None
        user, last = left[0], loop.body.operations[-1]
        if user.name == "tt.dot" and user.operands[2] == id and user in loop.body.operations:
            return self.in_place(user.results[0], nest)
        if user is not last:
            return None
        number = user.operands.index(id)
        place = loop.places[number]
        if not isinstance(place, Array) or not self._is_finished(loop.arguments[number], nest, but):
            return None
        return None if nest is not None and place.name in nest.read_elsewhere else place

    def _is_read_later(self, id: str, nest: Nest) -> bool:
        for user in self._users.get(id, ()):
            if user in nest.operations:
                continue
            if self._states.get(user) != "lazy" or any(self._is_read_later(one, nest) for one in user.results):
                return True
        return False

    # ---- nests ----

    def enter(self, operation: Operation, shape: tuple[int, ...], inputs: Iterable[Value]) -> tuple[Nest, Index]:
        """The nest that an operation goes into, and the index in it."""
        given = list(inputs)
        if self.nest and (self.nest.shape != shape or any(self._reads_other_elements(one) for one in given)):
            self.close()
        if self.nest is None:
            self.nest = Nest(shape)
        self.nest.operations.add(operation)
        for one in given:
            self.nest.read_elsewhere.update(read.name for read, at_own in one.reads() if not at_own)
        return self.nest, canonical(shape)

    def _reads_other_elements(self, value: Value) -> bool:
        """Whether a value reads another element of what the open nest makes."""
        return any(isinstance(one, Variable) and not at_own for one, at_own in value.reads())

    def settle(self, *values: Value) -> None:
        """Closes the nest if it makes any of these values."""
        if any(isinstance(one, Variable) for value in values for one, _ in value.reads()):
            self.close()

    def variable(self, id: str, type: Type, text: str, roots: Roots = frozenset()) -> Variable:
        """Adds a value to the open nest."""
        assert self.nest is not None
        made = Variable(type, self.fresh("x"), roots)
        self.nest.variables.append((id, made))
        self.nest.lines.append(declared(type.element, made.name, text))
        self.values[id] = made
        return made

    def close(self, fold: Fold | None = None) -> None:
        """Writes the open nest, with a fold of what it makes."""
        nest, self.nest = self.nest, None
        if nest is None:
            return
        index = flat(canonical(nest.shape), nest.shape)
        made: list[tuple[Variable, Array]] = []
        kept: list[Line] = []
        for id, variable in nest.variables:
            if self._is_read_later(id, nest):
                place = self.in_place(id, nest) or self.array(variable.type)
                made.append((variable, place))
                kept.append(Line(f"{place.name}[{index}] = {variable.name};"))
        lines = nest.lines + kept
        conditions = list(dict.fromkeys(one.condition for one in lines if one.condition))
        if self.width > 1:
            lanes.write_nest(self, nest, [one.masked or one.text for one in lines], fold)
        elif conditions:
            masked = loops(nest.shape, lines, fold)
            plain = loops(nest.shape, [one.plain for one in lines], fold)
            self.piece([f"if ({' && '.join(conditions)}) {{", *plain, "} else {", *masked, "}"])
        else:
            self.piece(["{", *loops(nest.shape, lines, fold), "}"])
        for variable, place in made:
            variable.array = Array(variable.type, place.name, is_run=variable.is_run)
        for operation in nest.operations:
            self.done(operation)

    def over(self, shape: tuple[int, ...], statements: list[str]) -> list[str]:
        """Statements for each index of a shape, one after the other or by the items whose elements these are."""
        return statements_over(shape, canonical(shape), statements) if self.width == 1 else lanes.over(self, shape, statements)

    # ---- arrays ----

    def settled(self, value: Value) -> Value:
        """The array of what a closed nest made, or the value itself."""
        return value.array if isinstance(value, Variable) and value.array else value

    def force(self, value: Value) -> Array:
        if isinstance(value, Variable) and value.array is None:
            self.close()
        value = self.settled(value)
        if isinstance(value, Array):
            return value
        for scope in self._forced:
            if value in scope:
                return scope[value]
        made = self.array(value.type)
        made.roots = value.roots
        self.copy(made, value)
        self._forced[-1][value] = made
        return made

    def copy(self, to: Array, value: Value) -> None:
        """Fills an array."""
        self.settle(value)
        if any(read.name == to.name for read, at_own in value.reads() if not at_own):
            value = self.force(value)
        shape = value.type.shape
        assert shape is not None
        index = canonical(shape)
        text = f"{to.name}[{flat(index, shape)}] = {value.at(index)};"
        self.piece(["{", *(loops(shape, [Line(text)]) if self.width == 1 else lanes.over(self, shape, [text])), "}"])

    def place(self, type: Type, initial: Value | None = None) -> Value:
        """The variable or array for a value that changes."""
        if type.is_tensor:
            made = self.array(type)
            if initial is not None:
                self.copy(made, initial)
            return made
        name = self.declare(type)
        if initial is not None:
            self.line(f"{name} = {initial.at([])};")
        return Scalar(type, name)

    def assign(self, places: list[Value], values: list[Value]) -> None:
        """Sets all places, as if at once."""
        self.close()
        names = {one.name for one in places if isinstance(one, (Array, Scalar))}
        arrays: list[tuple[Array, Value]] = []
        scalars: list[tuple[Scalar, str]] = []
        for place, value in zip(places, values, strict=True):
            value = self.settled(value)
            if isinstance(value, (Array, Scalar)) and isinstance(place, (Array, Scalar)) and value.name == place.name:
                continue
            if isinstance(place, Scalar):
                text = value.at([])
                if text in names:
                    text = self.declare(value.type)
                    self.line(f"{text} = {value.at([])};")
                scalars.append((place, text))
            elif isinstance(place, Array):
                if any(read.name in names for read, _ in value.reads()):
                    kept = self.array(value.type)
                    self.copy(kept, value)
                    value = kept
                arrays.append((place, value))
        # Expressions of the index may read scalars, but no scalar reads an array.
        for place, value in arrays:
            self.copy(place, value)
        for place, text in scalars:
            self.line(f"{place.name} = {text};")

    # ---- operations ----

    def value(self, id: str) -> Value:
        return self.values[id]

    def operands(self, operation: Operation) -> list[Value]:
        return [self.values[one] for one in operation.operands]

    def write(self, operation: Operation) -> None:
        """Writes an operation. The error of one that cannot be written names it, and its line."""
        try:
            handler = HANDLERS.get(operation.name)
            if handler is not None:
                handler(self, operation)
            elif operation.name in EXPRESSIONS:
                self._elementwise(operation)
            else:
                raise operation.refused("has no form on this device")
        except Refused as error:
            if error.is_placed or isinstance(error, lanes.NotInLanes):
                raise
            raise operation.refused(f"is not served: {error}") from error

    def write_blocks(self, blocks: list[Block]) -> None:
        """Writes the blocks of a function, whose arguments have values."""
        blocks = _in_order(blocks)
        self.note(blocks)
        for block in blocks[1:]:
            self.labels[block.label] = (self.fresh("block"), block)
            for id, type in block.arguments:
                self.values[id] = self.place(type)
                self.values[id].roots = ANYWHERE
        for block in blocks:
            if block is not blocks[0]:
                name, _ = self.labels.pop(block.label)
                self.line(f"{name}:;")
            self.write_all(block.operations)
            self.close()

    def write_function(self, blocks: list[Block], leave: Callable[[list[Value]], None]) -> None:
        """Writes a function. Declarations stand in front of jumps, which may not pass one in C++."""
        if len(blocks) > 1 or any(one.name == "tt.call" for one in walk(blocks)):
            self.hoisted = []
        self.leave = leave
        self.write_blocks(blocks)

    def write_all(self, operations: list[Operation]) -> None:
        for one in _folds_first(operations):
            self.write(one)

    def _elementwise(self, operation: Operation) -> None:
        inputs, type = self.operands(operation), operation.types[0]
        types = [one.type for one in inputs]
        is_moved = operation.name == "tt.addptr"
        roots = inputs[0].roots if is_moved else frozenset().union(*(one.roots for one in inputs))
        if not type.is_tensor:
            self.settle(*inputs)
            text = expression(operation, [one.at([]) for one in inputs], types, type.element)
            self.scalar(operation.results[0], type, text, roots)
            self.done(operation)
            return
        is_pointer = type.is_pointer and operation.name in ("tt.bitcast", "tt.int_to_ptr")
        if operation.name in _MADE_ANEW or is_pointer:
            is_address = operation.name in _ADDRESSES or is_pointer or all(one.is_index for one in inputs)
            if is_address and 1 + sum(one.cost for one in inputs) <= _MOST_COST:
                self.lazy(operation)
                self.values[operation.results[0]] = _anew(operation, inputs, type, roots)
                return
        _, index = self.enter(operation, type.shape or (), inputs)
        text = expression(operation, [one.at(index) for one in inputs], types, type.element)
        self.variable(operation.results[0], type, text, roots).is_run = _is_run(operation, inputs)


def _in_order(blocks: list[Block]) -> list[Block]:
    """Blocks in an order in which all jumps go forward, unless there is a loop of jumps."""
    by_label = {one.label: one for one in blocks[1:]}
    seen: set[Block] = set()
    ordered: list[Block] = []

    def visit(block: Block) -> None:
        seen.add(block)
        for label, _ in reversed([target for one in block.operations for target in one.targets]):
            if by_label[label] not in seen:
                visit(by_label[label])
        ordered.append(block)

    visit(blocks[0])
    return ordered[::-1]


def _closes(operation: Operation, shape: tuple[int, ...] | None) -> bool:
    """Whether an operation closes a nest over a shape, as far as its text tells."""
    if operation.regions or operation.name == "tt.dot" or operation.name.startswith("tt.atomic"):
        return True
    is_other = bool(operation.types) and operation.types[0].is_tensor and operation.types[0].shape != shape
    return is_other and operation.name not in _MADE_ANEW and operation.name not in _LAYOUTS


def _folds_first(operations: list[Operation]) -> list[Operation]:
    """Operations with each fold in front of what would close the nest that makes its operand."""
    ordered: list[Operation] = []
    types = {id: (one, type) for one in operations for id, type in zip(one.results, one.types, strict=True)}
    for operation in operations:
        made = [types[id] for id in operation.operands if id in types]
        place = len(ordered)
        if operation.name == "tt.reduce" and len(made) == len(operation.operands):
            place = 1 + max(ordered.index(one) for one, _ in made)
            while place < len(ordered) and not _closes(ordered[place], made[0][1].shape):
                place += 1
        ordered.insert(place, operation)
    return ordered


def _step(value: Value) -> int | None:
    """By how much a vector of integers goes up from element to element, if that is known to be 0 or 1."""
    if isinstance(value, Scalar):
        return 0
    if not isinstance(value, Expression):
        return None
    if value.operation in ("constant", "tt.splat"):
        return 0
    if value.operation == "tt.make_range":
        return 1
    if value.operation == "arith.addi":
        steps = [_step(one) for one in value.inputs]
        return max(steps) if steps in ([0, 0], [0, 1], [1, 0]) else None
    return None


def _is_run(operation: Operation, inputs: list[Value]) -> bool:
    """Whether integers are a run (`Array.is_run`): those of a run modulo a number, and those of one with 0 in the place of others."""
    if len(operation.types[0].shape or ()) != 1:
        return False
    if operation.name == "arith.remsi":
        return [_step(one) for one in inputs] == [1, 0]
    if operation.name != "arith.select":
        return False
    mask, number, other = inputs
    return (
        isinstance(mask, Expression)
        and mask.predicate == "slt"
        and mask.inputs[0] is number
        and [_step(mask.inputs[1]), _step(number)] == [0, 1]
        and isinstance(other, Expression)
        and other.operation == "constant"
        and other.at([]) == "0"
    )


def _anew(operation: Operation, inputs: list[Value], type: Type, roots: Roots) -> Expression:
    """An operation on indices or addresses as an expression of the index."""
    types = [one.type for one in inputs]
    wide: Callable[[Index], str] | None = None
    sign = _WIDE_SIGNS.get(operation.name)
    if sign and type.element in ("i32", "i64"):

        def wide(index: Index) -> str:
            return f"({inputs[0].wide(index)} {sign} {inputs[1].wide(index)})"

    elif operation.name == "arith.extsi" and types[0].element == "i32" and type.element == "i64":
        wide = inputs[0].wide

    def made(index: Index) -> str:
        if operation.name == "tt.addptr":
            offset = inputs[1].wide(index) if types[1].element in ("i32", "i64") else inputs[1].at(index)
            return f"({inputs[0].at(index)} + {offset})"
        return expression(operation, [one.at(index) for one in inputs], types, type.element)

    return Expression(
        type,
        made,
        tuple(inputs),
        wide=wide,
        operation=operation.name,
        predicate=operation.words()[0] if operation.name == "arith.cmpi" else "",
        cost=1,
        roots=roots,
    )
