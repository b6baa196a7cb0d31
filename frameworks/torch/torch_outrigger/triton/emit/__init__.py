"""Writes a kernel of Triton in the dialect: one program is one group, of one item or of many.

The kernel has the form that `inductor.program.Program.kernel` launches with one group for each program: addresses, then a struct of
words with how many programs a group runs, the numbers that the kernel takes, and the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ttir import Refused, Type, read
from . import control, folds, lanes, prints, tensors
from .functions import BASIC, WITHIN
from .values import Scalar, Value, bytes_of, memory, register, rounded
from .writer import MOST_ON_STACK, Module, Writer

__all__ = ["MOST_ON_STACK", "Kernel", "Refused", "control", "folds", "prints", "tensors", "write"]


@dataclass
class Kernel:
    """A kernel in the dialect, and what a launch must know of it."""

    text: str
    arguments: list[tuple[str, str]]
    """Kinds of the arguments: `pointer` and the C type that it leads to, or `scalar` and its element."""
    has_checks: bool
    messages: list[str]
    """The messages of assertions that may fail."""
    local_bytes: int
    """Bytes of arrays that the items of a program have."""
    width: int
    """Items that run a program."""
    shared_bytes: int
    """Bytes of arrays in memory of the group."""


def write(text: str, name: str, overlap: bool, looks: bool = False, width: int = 1) -> Kernel:
    """A module's kernel, as a function of this name, for groups of so many items, or of one if many do not serve it. If it looks at its
    accesses, it takes for each pointer where its memory begins and ends, in bytes from there. Refused if the module has what this
    device does not serve."""
    try:
        return _written(text, name, overlap, looks, width)
    except lanes.NotInLanes:
        return _written(text, name, overlap, looks, 1)


def _written(text: str, name: str, overlap: bool, looks: bool, width: int) -> Kernel:
    functions = read(text)
    kernels = [one for one in functions.values() if one.is_public]
    if len(kernels) != 1:
        raise Refused(f"a module has one kernel, and this one has {len(kernels)}")
    module = Module(functions, overlap, looks)
    if looks:
        module.has_checks = True
        module.messages.append("an access outside of a tensor")
        module.texts["triton_within"] = WITHIN
    writer, kernel = Writer(module, width), kernels[0]
    types = [type for _, type in kernel.arguments]
    for number, (id, type) in enumerate(kernel.arguments):
        writer.values[id] = Scalar(type, f"argument{number}", frozenset([number]) if type.is_pointer else frozenset())

    def leave(values: list[Value]) -> None:
        writer.line("return;")

    writer.write_function(kernel.blocks, leave)
    shared: dict[str, tuple[str, int]] = {}
    if width == 1:
        body, local_bytes = writer.text()
    else:
        body, local_bytes, shared = lanes.text(writer)
    program = _program(name, types, body, module, width, shared)
    return Kernel(
        "\n".join([BASIC, *module.texts.values(), program, _group(name, types, module, width, shared)]),
        [("pointer", memory(one.pointee)) if one.is_pointer else ("scalar", one.element) for one in types],
        module.has_checks,
        module.messages,
        local_bytes,
        width,
        sum(bytes_of(*one) for one in shared.values()),
    )


def _program(name: str, types: list[Type], body: str, module: Module, width: int, shared: dict[str, tuple[str, int]]) -> str:
    """The function that runs a program."""
    parameters = ["const i32 lane"] * (width > 1) + ["const i32* program", "const i32* grid"]
    parameters += [f"{register(one.element)} argument{number}" for number, one in enumerate(types)]
    parameters += [f"i64 {one}" for one in _bounds(types, module.looks)]
    parameters += ["OTR_GLOBAL i32* otr_failed"] * module.has_checks
    parameters += [f"OTR_LOCAL {kind}* {slot}" for slot, (kind, _) in shared.items()]
    return f"OTR_FUNCTION void {name}_program({', '.join(parameters)}) {{\n{body}\n}}\n"


def _bounds(types: list[Type], looks: bool) -> list[str]:
    """The names of the first and the end address of each pointer's memory."""
    pointers = [number for number, one in enumerate(types) if one.is_pointer and looks]
    return [f"{end}{number}" for number in pointers for end in ("first", "behind")]


def _of_word(type: Type, word: str) -> str:
    """A number out of the word in which it is given."""
    if type.element == "f64":
        return f"otr_of_bits_f64((u64){word})"
    if type.element in ("f32", "f16", "bf16"):
        return rounded(type.element, f"otr_of_bits_f32((u32){word})")
    return f"({register(type.element)}){word}"


def _group(name: str, types: list[Type], module: Module, width: int, shared: dict[str, tuple[str, int]]) -> str:
    """The kernel, whose groups run programs one after the other."""
    parameters = [f"{register(one.element)} argument{number}" for number, one in enumerate(types) if one.is_pointer]
    parameters += ["OTR_GLOBAL i32* otr_failed"] * module.has_checks
    numbers = " ".join(f"i64 number{number};" for number, one in enumerate(types) if not one.is_pointer)
    numbers += "".join(f" i64 {one};" for one in _bounds(types, module.looks))
    given = ["OTR_LANE"] * (width > 1) + ["program", "grid"]
    for number, one in enumerate(types):
        given.append(f"argument{number}" if one.is_pointer else _of_word(one, f"numbers.number{number}"))
    given += [f"numbers.{one}" for one in _bounds(types, module.looks)]
    given += ["otr_failed"] * module.has_checks
    given += shared
    declared = "".join(f"  OTR_SHARED({kind}, {slot}, {count});\n" for slot, (kind, count) in shared.items())
    # The next program has the same memory.
    barrier = "    OTR_BARRIER_GLOBAL();\n" * (width > 1)
    return f"""
typedef struct {{ i64 chunk; {numbers} i64 x; i64 y; i64 z; i64 total; }} {name}_numbers;
OTR_KERNEL({name})(OTR_ITEM {"".join(f"{one}, " for one in parameters)}const {name}_numbers numbers) {{
{declared}  const i64 first = (i64)OTR_GROUP_ID(0) * numbers.chunk, behind = first + numbers.chunk;
  const i64 last = behind < numbers.total ? behind : numbers.total;
  const i32 grid[3] = {{(i32)numbers.x, (i32)numbers.y, (i32)numbers.z}};
  for (i64 at = first; at < last; at++) {{
    const i32 program[3] = {{(i32)(at % numbers.x), (i32)(at / numbers.x % numbers.y), (i32)(at / numbers.x / numbers.y)}};
    {name}_program({", ".join(given)});
{barrier}  }}
}}
"""
