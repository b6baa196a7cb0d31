"""Element types of torch in the dialect: how they lie in memory, and what they are computed in.

It must never import Inductor: what describes a program is also read where nothing is compiled.
"""

from __future__ import annotations

import math

import torch

MEMORY = {
    torch.bool: "b8",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}
"""The dialect's name of an element type (D7)."""

NARROW_FLOATS = {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
"""Types that are loaded as f32, and rounded where they are stored."""

NARROW_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.uint16}
"""Types that are computed in i32, and cut to their width after each operation that can leave it."""

REGISTER = {
    **MEMORY,
    **dict.fromkeys(NARROW_FLOATS, "f32"),
    **dict.fromkeys(NARROW_INTEGERS, "i32"),
    torch.bool: "i32",
}
"""The type of a variable."""

FLOATS = ("f32", "f64")


def computed(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a value of this dtype once it is in a variable."""
    return torch.float32 if dtype in NARROW_FLOATS else dtype


def literal(value: float | int | bool, register: str) -> str:
    """A number as text, of a register type."""
    if register in FLOATS:
        number = float(value)
        if math.isnan(number):
            return f"(({register})OTR_NAN_F32)"
        if math.isinf(number):
            return f"(({register}){'-' if number < 0 else ''}OTR_INFINITY_F32)"
        text = repr(number)
        if register == "f32":
            text = f"{text}f" if "." in text or "e" in text else f"{text}.0f"
        return f"({text})" if number < 0 or text.startswith("-") else text
    number = int(value)
    if register == "i32" and -(2**31) < number < 2**31:
        return f"({number})" if number < 0 else str(number)
    # The lowest number has no literal of its own. A number of 64 bits is put together from halves, since the languages
    # do not agree on suffixes.
    bits = number & (2**64 - 1)
    return f"(({register})(((u64){bits >> 32}u << 32) | (u64){bits & 0xFFFFFFFF}u))" if bits >> 31 else f"(({register}){number})"


def narrowed(dtype: torch.dtype, text: str) -> str:
    """An integer of any width, cut to that of a dtype."""
    if dtype in NARROW_INTEGERS:
        return f"(i32)({MEMORY[dtype]})({text})"
    return text


def load(dtype: torch.dtype, pointer: str, index: str) -> str:
    """An element in its register type."""
    if dtype in NARROW_FLOATS:
        return f"OTR_LOAD({MEMORY[dtype]}, f32, {pointer}, {index})"
    if dtype == torch.bool:
        return f"(i32)({pointer}[{index}] != 0)"
    return f"{pointer}[{index}]"


def store(dtype: torch.dtype, pointer: str, index: str, value: str) -> str:
    """A statement that puts a value into memory."""
    if dtype in NARROW_FLOATS:
        return f"OTR_STORE({MEMORY[dtype]}, f32, {pointer}, {index}, {value});"
    if dtype == torch.bool:
        return f"{pointer}[{index}] = (u8)({value} != 0);"
    return f"{pointer}[{index}] = ({MEMORY[dtype]})({value});"
