"""Reads the text of a TTIR module into objects.

The bindings of Triton reach neither the blocks of a region nor attributes that are arrays, so the text is read. Each operation
is in a table that says where its types stand. What is not in the table is refused by its name: nothing is ever guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class Refused(NotImplementedError):
    """A kernel uses what this device does not serve."""

    is_placed = False
    """Whether the message names the operation and its line."""


@dataclass(frozen=True)
class Type:
    """A type: the name of an element, and a shape if it is a tensor."""

    element: str
    """f32, i1, f8E5M2, index, or `ptr` and the element that a pointer leads to."""
    shape: tuple[int, ...] | None = None

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None

    @property
    def count(self) -> int:
        return math.prod(self.shape or ())

    @property
    def is_pointer(self) -> bool:
        return self.element.startswith("ptr ")

    @property
    def pointee(self) -> str:
        return self.element.removeprefix("ptr ")

    def of(self, element: str) -> Type:
        """A type of the same shape."""
        return Type(element, self.shape)


@dataclass(eq=False)
class Block:
    label: str
    arguments: list[tuple[str, Type]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class Operation:
    name: str
    results: list[str]
    operands: list[str]
    text: str
    """The text behind the name, without locations and without the contents of strings."""
    types: list[Type]
    """Types of the results."""
    where: str
    """The line of the kernel's source."""
    strings: list[str] = field(default_factory=list)
    regions: list[list[Block]] = field(default_factory=list)
    targets: list[tuple[str, list[str]]] = field(default_factory=list)
    """The blocks of a branch, and the values of their arguments."""

    def attribute(self, key: str) -> str | None:
        """The text of an attribute's value."""
        found = re.search(rf"\b{key} = (?:array<i(?:32|64): ([^>]*)>|([-\w.]+))", self.text)
        return found and (found[1] or found[2])

    def number(self, key: str) -> int:
        """An attribute that is a number."""
        value = self.attribute(key)
        if value is None:
            raise self.refused(f"has no attribute {key}")
        return int(value)

    def numbers(self, key: str) -> list[int]:
        """An attribute that is a list of numbers."""
        return [int(one) for one in (self.attribute(key) or "").split(",") if one.strip()]

    def words(self) -> list[str]:
        """The words in front of the first operand, or of the types."""
        return re.findall(r"\w+", re.split("[%:{]", self.text)[0])

    def refused(self, why: str) -> Refused:
        """The error that this operation is not served."""
        error = Refused(f"{self.where}: the operation {self.name} {why}")
        error.is_placed = True
        return error


@dataclass(eq=False)
class Function:
    name: str
    is_public: bool
    blocks: list[Block]
    results: list[Type]

    @property
    def arguments(self) -> list[tuple[str, Type]]:
        return self.blocks[0].arguments


def operations(blocks: list[Block]) -> Iterator[Operation]:
    """All operations of blocks and of the regions in them, outer ones first."""
    for block in blocks:
        for operation in block.operations:
            yield operation
            for region in operation.regions:
                yield from operations(region)


_ALIKE = (
    "arith.addi arith.subi arith.muli arith.andi arith.ori arith.xori arith.shli arith.shrsi arith.shrui arith.divsi arith.divui "
    "arith.remsi arith.remui arith.ceildivsi arith.ceildivui arith.floordivsi arith.maxsi arith.minsi arith.maxui arith.minui "
    "arith.addf arith.subf arith.mulf arith.divf arith.remf arith.negf arith.maximumf arith.minimumf arith.maxnumf arith.minnumf "
    "math.absf math.absi math.acos math.acosh math.asin math.asinh math.atan math.atan2 "
    "math.atanh math.cbrt math.ceil math.copysign math.cos math.cosh math.ctlz math.ctpop math.cttz math.erf math.erfc "
    "math.exp math.exp2 math.expm1 math.floor math.fma math.log math.log10 math.log1p math.log2 math.powf math.round "
    "math.roundeven math.rsqrt math.sin math.sinh math.sqrt math.tan math.tanh math.trunc tt.clampf tt.precise_sqrt "
    "tt.precise_divf tt.approx_divf tt.mulhiui tt.addptr tt.get_program_id tt.get_num_programs tt.make_range ub.poison"
).split()
_COMPARED = "arith.cmpi arith.cmpf".split()
_CAST = (
    "arith.extsi arith.extui arith.trunci arith.index_cast arith.index_castui arith.sitofp arith.uitofp arith.fptosi arith.fptoui "
    "arith.extf arith.truncf arith.bitcast"
).split()
_ARROW = (
    "tt.splat tt.broadcast tt.expand_dims tt.reshape tt.trans tt.join tt.split tt.cat tt.bitcast tt.fp_to_fp "
    "tt.int_to_ptr tt.ptr_to_int tt.dot tt.dot_scaled tt.gather tt.histogram tt.reduce tt.scan tt.map_elementwise "
    "tt.extern_elementwise tt.elementwise_inline_asm tt.atomic_rmw tt.atomic_cas tt.atomic_load tt.atomic_poll tt.call"
).split()
_WITHOUT_RESULTS = (
    "tt.store tt.atomic_store tt.assert tt.print tt.return tt.reduce.return tt.scan.return tt.map_elementwise.return scf.yield "
    "scf.condition cf.br cf.cond_br llvm.intr.assume ttg.barrier"
).split()

RULES = {
    **dict.fromkeys(_ALIKE, "alike"),
    **dict.fromkeys(_COMPARED, "compared"),
    **dict.fromkeys(_CAST, "cast"),
    **dict.fromkeys(_ARROW, "arrow"),
    **dict.fromkeys(_WITHOUT_RESULTS, "none"),
    "arith.select": "last",
    "arith.constant": "constant",
    "tt.unsplat": "element",
    "tt.load": "pointee",
    "scf.for": "for",
    "scf.if": "if",
    "scf.while": "while",
}
"""For each operation that can be read: where the types of its results stand."""

_NAME = re.compile(r"%[\w\-$.]+(?:#\d+)?")
_LOCATION = " loc("
_OPENING, _CLOSING = "<({[", ")}]"

_MOST_CALLS = 32
"""Locations within locations that are looked at."""


def read(text: str) -> dict[str, Function]:
    """The functions of a module."""
    return _Reader(text).module()


def _characters(text: str) -> Iterator[tuple[int, str, int]]:
    """Position, character and depth of brackets, of what is outside of strings. `->` closes nothing."""
    depth, in_string = 0, False
    for at, one in enumerate(text):
        if one == '"' and (at == 0 or text[at - 1] != "\\"):
            in_string = not in_string
        elif in_string:
            continue
        elif one in _OPENING:
            depth += 1
        elif one in _CLOSING or (one == ">" and text[at - 1] != "-"):
            depth -= 1
        yield at, one, depth


def _split(text: str, separator: str = ",") -> list[str]:
    """Parts between separators that stand outside of brackets."""
    parts, start = [], 0
    for at, one, depth in _characters(text):
        if one == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [one.strip() for one in parts if one.strip()]


def _behind_last_colon(text: str) -> str:
    found = None
    for at, one, depth in _characters(text):
        if one == ":" and depth == 0 and (at == 0 or text[at - 1] == " "):
            found = at
    return "" if found is None else text[found + 1 :].strip()


def _closed(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    for at, _, depth in _characters(text[start:]):
        if depth == 0:
            return start + at + 1
    raise Refused(f"the brackets of a module's text do not match: {text[:120]}")


def type_of(text: str) -> Type:
    text = text.strip()
    found = re.fullmatch(r"tensor<((?:\d+x)*)(.*)>", text)
    if found:
        return Type(type_of(found[2]).element, tuple(int(one) for one in found[1].split("x")[:-1]))
    found = re.fullmatch(r'!tt\.ptr<(.*?)(?:, (?:\d+|"[^"]*"))?>', text)
    if found:
        return Type(f"ptr {type_of(found[1]).element}")
    if not re.fullmatch(r"\w+", text):
        raise Refused(f"the type {text} has no form on this device")
    return Type(text)


def _types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("("):
        text = text[1:-1]
    return [type_of(one) for one in _split(text)]


def _without_strings(text: str) -> tuple[str, list[str]]:
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text), strings


def _name_apart(blocks: list[Block], outer: dict[str, str], used: set[str]) -> None:
    """Gives each value a name of its own: regions that stand side by side have the same ones."""
    names = dict(outer)

    def named(id: str) -> str:
        names[id] = id if id not in used else f"{id}.{len(used)}"
        used.add(names[id])
        return names[id]

    for block in blocks:
        block.arguments = [(named(id), type) for id, type in block.arguments]
    for block in blocks:
        for one in block.operations:
            one.operands = [names[id] for id in one.operands]
            one.targets = [(label, [names[id] for id in given]) for label, given in one.targets]
            for region in one.regions:
                _name_apart(region, names, used)
            one.results = [named(id) for id in one.results]


class _Reader:
    def __init__(self, text: str) -> None:
        self._locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self._lines: list[tuple[str, str]] = []
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                self._lines.append(self._without_locations(line.strip()))
        self._at = 0

    # ---- locations ----

    def _without_locations(self, line: str) -> tuple[str, str]:
        """A line without its locations, and the last of them."""
        last = ""
        while True:
            start = next((at for at, one, _ in _characters(line) if one == "l" and line.startswith(_LOCATION, at - 1)), None)
            if start is None:
                return line.split("  // pred")[0].rstrip(), last
            end = _closed(line, start + 3)
            last = line[start + 4 : end - 1]
            line = line[: start - 1] + line[end:]

    def _where(self, location: str) -> str:
        """File and line of a location. Of a function of Triton's own it is the line that calls it."""
        lines = list(self._lines_of(location, 0))
        own = [one for one in lines if "/triton/language/" not in one]
        return next(iter(own or lines), "an unknown line")

    def _lines_of(self, location: str, depth: int) -> Iterator[str]:
        """The lines that a location names, those of called functions first."""
        direct = re.fullmatch(r'"([^"]*)":(\d+):\d+', location)
        if direct:
            yield f"{direct[1]}:{direct[2]}"
        elif depth < _MOST_CALLS:
            for one in re.findall(r"#loc\d*", location):
                yield from self._lines_of(self._locations.get(one, ""), depth + 1)

    # ---- structure ----

    def module(self) -> dict[str, Function]:
        functions = {}
        while self._at < len(self._lines):
            line, location = self._lines[self._at]
            if line.startswith("tt.func"):
                function = self._function(line)
                functions[function.name] = function
            elif line in ("}",) or line.startswith("module"):
                self._at += 1
            else:
                raise Refused(f"{self._where(location)}: what a module holds is not known: {line[:120]}")
        return functions

    def _function(self, line: str) -> Function:
        found = re.match(r'tt\.func (public |private )?@(?:"([^"]*)"|([^"(]+))\(', line)
        if found is None:
            raise Refused(f"the head of a function is not known: {line[:120]}")
        end = _closed(line, found.end() - 1)
        arguments = []
        for one in _split(line[found.end() : end - 1]):
            name, of = one.split(":", 1)
            arguments.append((name.strip(), type_of(re.sub(r"\{.*\}", "", of))))
        results = re.match(r"\s*->\s*(\(.*?\)|\S+)(?: attributes| \{)", line[end:])
        self._at += 1
        blocks = self._blocks(arguments)
        self._at += 1
        _name_apart(blocks, {}, set())
        private = (found[1] or "").strip() == "private"
        return Function(found[2] or found[3], not private, blocks, _types(results[1]) if results else [])

    def _blocks(self, arguments: list[tuple[str, Type]] | None = None) -> list[Block]:
        """Blocks, until a line that begins with `}`."""
        blocks = [Block("", list(arguments or []))]
        while not self._lines[self._at][0].startswith("}"):
            line = self._lines[self._at][0]
            found = re.match(r"(\^bb\d+)(?:\((.*)\))?:", line)
            if not found:
                blocks[-1].operations.append(self._operation())
                continue
            self._at += 1
            taken = [(name.strip(), type_of(of)) for name, of in (one.split(":", 1) for one in _split(found[2] or ""))]
            if len(blocks) == 1 and not blocks[0].operations and not blocks[0].label and arguments is None:
                blocks[0].label, blocks[0].arguments = found[1], taken
            else:
                blocks.append(Block(found[1], taken))
        return blocks

    def _operation(self) -> Operation:
        line, location = self._lines[self._at]
        found = re.match(r'(?:(%[\w\-$.]+)(?::(\d+))?((?:, %[\w\-$.]+)*) = )?("?)([\w.]+)\4\s*(.*)$', line)
        where = self._where(location)
        if found is None:
            raise Refused(f"{where}: the operation is not known: {line[:120]}")
        first, several, more, _, name, rest = found.groups()
        results = [f"{first}#{one}" for one in range(int(several))] if several else _NAME.findall(f"{first or ''}{more or ''}")
        text, strings = _without_strings(rest)
        made = Operation(name, results, [], text, [], where, strings)
        rule = RULES.get(name)
        if rule is None:
            raise made.refused("has no form on this device")
        self._at += 1
        if rule == "for":
            self._for(made)
        elif rule == "while":
            self._while(made)
        elif rule == "if":
            self._if(made)
        elif text.endswith("({"):
            self._regions(made)
        elif made.name in ("cf.br", "cf.cond_br"):
            made.operands = _NAME.findall(text.split("^")[0])
            for label, given in re.findall(r"(\^bb\d+)(?:\(([^)]*)\))?", text):
                made.targets.append((label, _NAME.findall(given.split(":")[0])))
        else:
            made.operands = _NAME.findall(text)
            made.types = self._result_types(made, rule, _behind_last_colon(text))
        if len(made.types) != len(made.results) and rule != "none":
            raise made.refused(f"has {len(made.results)} results, and their types are not known: {text[:120]}")
        return made

    def _result_types(self, made: Operation, rule: str, text: str) -> list[Type]:
        """The types of an operation's results, out of the text behind the last colon."""
        if rule == "none" or not made.results:
            return []
        if rule == "constant":
            # `true` and `false` are written without a type.
            return [type_of(text) if text else Type("i1")]
        if rule == "cast":
            return [type_of(text.split(" to ")[1])]
        if rule == "arrow" and "->" in text:
            types = _types(text.split("->", 1)[1])
            # Results of one type may be written once.
            return types * len(made.results) if len(types) == 1 else types
        types = _types(text)
        if rule == "element":
            return [Type(types[0].element)]
        if rule == "last":
            return [types[-1]]
        if rule == "compared":
            return [types[0].of("i1")]
        if rule == "pointee":
            return [types[0].of(types[0].pointee)]
        if rule == "alike":
            return [types[0]] * len(made.results)
        raise made.refused(f"is written as is not known: {made.text[:120]}")

    def _regions(self, made: Operation) -> None:
        """Regions in the generic form: `({ ... }, { ... }) : types`."""
        made.operands = _NAME.findall(made.text)
        while True:
            made.regions.append(self._blocks())
            end = self._end(made)
            if not end.startswith("}, {"):
                break
        end, _ = _without_strings(end)
        made.types = _types(_behind_last_colon(end[2:]).split("->")[1])
        made.text = f"{made.text} {end}"

    def _end(self, made: Operation) -> str:
        """The line that ends a region."""
        line, location = self._lines[self._at]
        if location:
            made.where = self._where(location)
        self._at += 1
        return line

    def _if(self, made: Operation) -> None:
        made.operands = _NAME.findall(made.text)[:1]
        results = re.search(r"-> \((.*)\) \{", made.text)
        made.types = _types(results[1]) if results else []
        made.regions.append(self._blocks())
        end = self._end(made)
        if end.startswith("} else"):
            made.regions.append(self._blocks())
            self._end(made)

    def _for(self, made: Operation) -> None:
        head = re.match(r"(?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)", made.text)
        kind = re.search(r": (\w+) \{$", made.text)
        carried = re.search(r"iter_args\((.*?)\) -> \((.*)\)\s+(?:: \w+ )?\{", made.text)
        if head is None:
            raise made.refused(f"is written as is not known: {made.text[:120]}")
        arguments = [(head[1], Type(kind[1] if kind else "index"))]
        made.operands = [head[2], head[3], head[4]]
        if carried:
            made.types = _types(carried[2])
            for pair, of in zip(carried[1].split(", "), made.types, strict=True):
                name, initial = pair.split(" = ")
                arguments.append((name, of))
                made.operands.append(initial)
        made.regions.append(self._blocks(arguments))
        self._end(made)
        self._yielding(made)

    def _while(self, made: Operation) -> None:
        found = re.match(r"(?:\((.*?)\) )?: (.*?) -> (.*) \{$", made.text)
        if found is None:
            raise made.refused(f"is written as is not known: {made.text[:120]}")
        arguments = []
        if found[1]:
            for pair, of in zip(found[1].split(", "), _types(found[2]), strict=True):
                name, initial = pair.split(" = ")
                arguments.append((name, of))
                made.operands.append(initial)
        made.types = _types(found[3])
        made.regions.append(self._blocks(arguments))
        self._end(made)
        made.regions.append(self._blocks())
        self._end(made)
        self._yielding(made)

    def _yielding(self, made: Operation) -> None:
        """A region that yields nothing is written without a yield."""
        body = made.regions[-1][-1].operations
        if not body or body[-1].name != "scf.yield":
            body.append(Operation("scf.yield", [], [], "", [], made.where))
