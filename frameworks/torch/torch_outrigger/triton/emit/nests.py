"""Loop nests over elements, and folds that are part of one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from ..ttir import Operation, Type
from .values import Index, Roots, Variable, canonical, flat, register

_LANES = ((512, 64), (128, 32), (0, 16))
"""From which length on a fold has how many lanes."""
LAST_LANES = 8
"""Lanes that are left of each row where rows are folded together in the end."""


@dataclass
class Line:
    """A statement of a nest."""

    text: str
    masked: str = ""
    """The statement where its mask may be false somewhere."""
    condition: str | None = None
    """When the mask is true everywhere; None if that is not known."""

    @property
    def plain(self) -> Line:
        """The statement where its condition holds."""
        return Line(self.text) if self.condition else self


@dataclass(eq=False)
class Nest:
    """A loop nest that is open."""

    shape: tuple[int, ...]
    lines: list[Line] = field(default_factory=list)
    operations: set[Operation] = field(default_factory=set)
    variables: list[tuple[str, Variable]] = field(default_factory=list)
    loads: list[tuple[Roots, str]] = field(default_factory=list)
    """Arguments that are read, and the pointers by which they are."""
    stores: list[tuple[Roots, str]] = field(default_factory=list)
    read_elsewhere: set[str] = field(default_factory=set)
    """Arrays of which other elements are read than the one at the nest's index."""


@dataclass(eq=False)
class Combination:
    """The function of a region that makes one element of two, or several of twice as many."""

    name: str
    types: list[Type]
    has_checks: bool

    def lines(self, before: list[str], here: list[str], results: list[str], first: str = "") -> list[str]:
        """Statements that set the results. Where the condition `first` holds there is nothing before."""
        given = ", ".join([*before, *here, *(["otr_failed"] if self.has_checks else [])])
        called = f"{self.name}({given})"
        if len(self.types) == 1:
            joined = f"{first} ? {here[0]} : {called}" if first else called
            return [f"{results[0]} = {joined};"]
        written = [f"const {self.name}_results joined = {called};"]
        for number, result in enumerate(results):
            joined = f"joined.r{number}"
            written.append(f"{result} = {f'{first} ? {here[number]} : {joined}' if first else joined};")
        return ["{", *written, "}"]


@dataclass(eq=False)
class Fold:
    """A fold of elements that a nest makes, along one dimension."""

    axis: int
    combination: Combination
    values: list[str]
    """The elements at the nest's index."""
    results: list[str]
    """Names of arrays, or of variables if nothing is left but one element."""
    lanes: list[str] = field(default_factory=list)
    """Names of arrays for what the lanes have."""
    tails: list[str] = field(default_factory=list)
    """Names of arrays for what the last lanes of all rows have."""

    def target(self, number: int, shape: tuple[int, ...]) -> str:
        """The variable, or the element of an array, that takes a result."""
        rest = shape[: self.axis] + shape[self.axis + 1 :]
        if not rest:
            return self.results[number]
        index = canonical(shape)
        return f"{self.results[number]}[{flat(index[: self.axis] + index[self.axis + 1 :], rest)}]"


def lanes_of(length: int) -> int:
    """The number of neighbours that are folded side by side."""
    return min(length, next(lanes for least, lanes in _LANES if length >= least))


def is_innermost(shape: tuple[int, ...], axis: int) -> bool:
    """Whether neighbours along a dimension are neighbours in memory."""
    return math.prod(shape[axis + 1 :]) == 1


def loops(shape: tuple[int, ...], lines: list[Line], fold: Fold | None = None) -> list[str]:
    """The text of a nest."""
    statements = [one.masked or one.text for one in lines]
    # GCC 12 loses stores under a mask of a loop that is said to be independent.
    independent = ["OTR_INDEPENDENT"] * all(not one.masked for one in lines)
    if fold is not None and is_innermost(shape, fold.axis):
        return _resolved(shape, _folding(shape, statements, fold, independent), _singly(shape))
    if fold is not None:
        targets = [fold.target(number, shape) for number in range(len(fold.results))]
        statements += fold.combination.lines(targets, fold.values, targets, f"d{fold.axis} == 0" if shape[fold.axis] > 1 else "1")
    groups = _groups(shape, statements)
    heads = []
    for group in groups:
        heads += independent * (group == groups[-1])
        heads.append(f"for (i32 {_name(group)} = 0; {_name(group)} < {_size(shape, group)}; {_name(group)}++) {{")
    return [*heads, *_resolved(shape, statements, groups), *("}" for _ in groups)]


_Group = tuple[int, int]
"""The first and the last of dimensions that one loop goes through."""

INDEX = re.compile(r"\bd(\d+)(?:_(\d+))?\b")
"""The index of a dimension, or of several that follow each other."""


def _name(group: _Group) -> str:
    return f"d{group[0]}" if group[0] == group[1] else f"d{group[0]}_{group[1]}"


def _size(shape: tuple[int, ...], group: _Group) -> int:
    return math.prod(shape[group[0] : group[1] + 1])


def _singly(shape: tuple[int, ...]) -> list[_Group]:
    return [(dim, dim) for dim, size in enumerate(shape) if size > 1]


def _groups(shape: tuple[int, ...], statements: list[str]) -> list[_Group]:
    """Dimensions that statements never tell apart are one loop: a compiler takes much time for many."""
    starts = set()
    for one in statements:
        for first, last in INDEX.findall(one):
            starts |= {int(first), int(last or first) + 1}
    groups: list[_Group] = []
    for dim, _ in _singly(shape):
        if groups and groups[-1][1] == dim - 1 and dim not in starts:
            groups[-1] = (groups[-1][0], dim)
        else:
            groups.append((dim, dim))
    return groups


def _resolved(shape: tuple[int, ...], statements: list[str], groups: list[_Group]) -> list[str]:
    """Statements with indices of several dimensions as those of the loops there are."""

    def index(found: re.Match[str]) -> str:
        first, last = int(found[1]), int(found[2] or found[1])
        inside = [one for one in groups if first <= one[0] and one[1] <= last]
        if len(inside) <= 1:
            return found[0]
        parts = [f"{_name(one)} * {math.prod(shape[one[1] + 1 : last + 1])}" for one in inside[:-1]]
        return f"({' + '.join([*parts, _name(inside[-1])])})"

    return [INDEX.sub(index, one) for one in statements]


def _folding(shape: tuple[int, ...], statements: list[str], fold: Fold, independent: list[str]) -> list[str]:
    """A nest whose innermost dimension is folded: neighbours side by side in lanes, then one half of the lanes with the other.

    Any function becomes vectors so. The order of the elements is left open, as Triton leaves it. Of many rows the last lanes are
    folded by another nest, in which rows are neighbours."""
    axis, length, combination = fold.axis, shape[fold.axis], fold.combination
    outer = [dim for dim in range(axis) if shape[dim] > 1]
    heads = [f"for (i32 d{dim} = 0; d{dim} < {shape[dim]}; d{dim}++) {{" for dim in outer]
    width = lanes_of(length)

    def lane(at: str) -> list[str]:
        return [f"{one}[{at}]" for one in fold.lanes]

    def over_lanes(count: int, lines: list[str], pragmas: list[str]) -> list[str]:
        return [*pragmas, *["OTR_WHOLE"] * (count > 1), f"for (i32 lane = 0; lane < {count}; lane++) {{", *lines, "}"]

    here = lane("lane")
    if length == width:
        kept = [f"{to} = {value};" for to, value in zip(here, fold.values, strict=True)]
        body = over_lanes(width, [f"const i32 d{axis} = lane;", *statements, *kept], independent)
    else:
        joined = combination.lines(here, fold.values, here, "first == 0")
        inner = over_lanes(width, [f"const i32 d{axis} = first + lane;", *statements, *joined], independent)
        body = [f"for (i32 first = 0; first < {length}; first += {width}) {{", *inner, "}"]
    half, least = width // 2, LAST_LANES if fold.tails else 1
    while half >= least:
        body += over_lanes(half, combination.lines(here, lane(f"lane + {half}"), here), ["OTR_INDEPENDENT"])
        half //= 2
    targets = [fold.target(number, shape) for number in range(len(fold.results))]
    if not fold.tails:
        body += [f"{to} = {one};" for to, one in zip(targets, lane("0"), strict=True)]
        return [*heads, *body, *("}" for _ in outer)]
    row = flat(canonical(shape)[:axis], shape[:axis])
    tails = [f"{one}[({row}) * {LAST_LANES} + lane]" for one in fold.tails]
    body += over_lanes(LAST_LANES, [f"{to} = {one};" for to, one in zip(tails, here, strict=True)], ["OTR_INDEPENDENT"])
    last = _tree(combination, [[f"{one}[({row}) * {LAST_LANES} + {number}]" for one in fold.tails] for number in range(LAST_LANES)], targets)
    return [*heads, *body, *("}" for _ in outer), *heads[:-1], "OTR_INDEPENDENT", heads[-1], *last, *("}" for _ in outer)]


def _tree(combination: Combination, elements: list[list[str]], targets: list[str]) -> list[str]:
    """Statements that fold elements, each with one of the other half."""
    lines, level = [], 0
    while len(elements) > 2:
        half, joined = len(elements) // 2, []
        for number in range(half):
            names = [f"part{level}_{number}_{one}" for one in range(len(targets))]
            lines += [f"{register(type.element)} {name};" for type, name in zip(combination.types, names, strict=True)]
            lines += combination.lines(elements[number], elements[number + half], names)
            joined.append(names)
        elements, level = joined, level + 1
    return [*lines, *combination.lines(elements[0], elements[1], targets)]


def statements_over(shape: tuple[int, ...], index: Index, statements: list[str]) -> list[str]:
    """Statements for each index of a shape, one after the other."""
    dims = [dim for dim, one in enumerate(index) if one != "0"]
    heads = [f"for (i32 d{dim} = 0; d{dim} < {shape[dim]}; d{dim}++) {{" for dim in dims]
    return [*heads, *_resolved(shape, statements, _singly(shape)), *("}" for _ in dims)]


def declared(element: str, name: str, text: str) -> Line:
    """A variable of a nest."""
    return Line(f"{'' if element.startswith('ptr ') else 'const '}{register(element)} {name} = {text};")
