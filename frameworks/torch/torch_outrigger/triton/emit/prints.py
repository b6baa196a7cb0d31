"""`tl.device_print`: a line for each element, as Triton's other backends print them."""

from __future__ import annotations

import re

from ..ttir import Operation, Type
from . import lanes
from .values import BITS, FLOATS, SMALL_FLOATS, UNSIGNED, Value, canonical, of_bits, register
from .writer import Writer, writes

_HEAD = r"""
#if OTR_C
#ifdef __cplusplus
extern "C" {
#endif
int printf(const char*, ...);
int fflush(void*);
#ifdef __cplusplus
}
#endif
/* Whoever waits for the stream has seen all lines. */
#define TRITON_PRINTED() fflush((void*)0)
#elif OTR_OPENCL || OTR_CUDA
#define TRITON_PRINTED() ((void)0)
#else
#error "tl.device_print needs a language with printf"
#endif
#if OTR_OPENCL
#define TRITON_LONG "l"
#else
#define TRITON_LONG "ll"
#endif
"""


@writes("tt.print")
def _print(writer: Writer, operation: Operation) -> None:
    writer.close()
    writer.module.texts["TRITON_PRINTED"] = _HEAD
    prefix = _quoted(operation.strings[0])
    operands = writer.operands(operation)
    if not operands:
        _line(writer, Type("i32"), [], prefix, "", "")
    for number, value in enumerate(operands):
        shape = value.type.shape or ()
        index = canonical(shape) if shape else []
        form, text = _shown(value, value.at(index), operation.numbers("isSigned")[number] != 0, operation.attribute("hex") == "true")
        place = ", ".join(f"%{len(str(size - 1))}d" for size in shape)
        which = f"(operand {number}) " if len(operands) > 1 else ""
        _line(writer, value.type, index, f" idx ({place}){prefix}{which}", form, text)
    writer.line("TRITON_PRINTED();")
    writer.done(operation)


def _line(writer: Writer, type: Type, index: list[str], text: str, form: str, value: str) -> None:
    given = ", ".join([*(f"program[{axis}]" for axis in range(3)), *index, *([value] if value else [])])
    statement = f'printf("pid (%d, %d, %d){text}{form}\\n", {given});'
    if type.is_tensor:
        writer.piece(["{", *writer.over(type.shape or (), [statement]), "}"])
    else:
        writer.line(lanes.by_one(writer, statement))


def _shown(value: Value, text: str, is_signed: bool, is_hex: bool) -> tuple[str, str]:
    """The format of a number, and the number as the format takes it."""
    element = value.type.element
    if value.type.is_pointer:
        return "%p", f"(OTR_GLOBAL void*)({text})"
    if element in FLOATS or element in SMALL_FLOATS:
        return "%a" if is_hex else "%f", of_bits(element, text) if element in SMALL_FLOATS else text
    is_long = BITS[element] == 64
    length = '%" TRITON_LONG "' if is_long else "%"
    kind = register("i64" if is_long else "i32") if is_signed and not is_hex else "u64" if is_long else "u32"
    if not is_signed or is_hex:
        # Not more bits than the number has.
        text = f"({UNSIGNED[element]})({text})"
    if is_hex:
        digits = max(BITS[element] // 4, 1)
        length = length.replace("%", f"0x%0{digits}", 1)
    return f"{length}{'x' if is_hex else 'd' if is_signed else 'u'}", f"({kind})({text})"


def _quoted(text: str) -> str:
    """The text of a module's string within a format of C."""
    made = []
    for one in _characters(text):
        made.append("%%" if one == "%" else one if one.isalnum() or one in " :;,.()[]{}<>=+-*/!|&^~_#@$'`" else f"\\{ord(one):03o}")
    return "".join(made)


def _characters(text: str) -> str:
    """A string of a module without its escapes: two hexadecimal digits, or the character itself."""
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", lambda found: chr(int(found[1], 16)) if len(found[1]) == 2 else found[1], text)
