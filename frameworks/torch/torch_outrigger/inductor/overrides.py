"""Operators of Inductor's loops as expressions of the dialect.

Each gives what the eager operator gives: integers wrap at their width, a division by 0 is 0, NaN wins in `maximum` and
`minimum`. It must never raise for an operator that a lowering has let through: what has no text here is kept away from
code generation by `kept.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, OpOverrides
from torch._inductor.utils import IndentedBuffer, get_bounds_index_expr
from torch._inductor.virtualized import V, ops

from .printer import is_real
from .types import FLOATS, MEMORY, NARROW_FLOATS, REGISTER, literal, narrowed

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "lgamma floor ceil trunc"
).split()
BINARY = "pow atan2 copysign hypot nextafter".split()
"""Functions of floating-point numbers that the dialect or `functions.h` has."""


def dtype_of(*values: Any) -> torch.dtype:
    """The dtype in which operands meet."""
    dtypes = [one.dtype for one in values if isinstance(one, CSEVariable) and one.dtype is not None]
    if not dtypes:
        return torch.float32
    return functools.reduce(torch.promote_types, dtypes) if len(set(dtypes)) > 1 else dtypes[0]


def float_of(*values: Any) -> str:
    """The floating-point register type in which operands meet."""
    return "f64" if REGISTER[dtype_of(*values)] == "f64" else "f32"


def _cast(register: str, value: Any) -> str:
    if isinstance(value, CSEVariable) and value.dtype is not None and REGISTER[value.dtype] == register:
        return str(value)
    return f"({register}){value}" if isinstance(value, CSEVariable) else f"({register})({value})"


def _arithmetic(name: str, sign: str, *values: Any) -> str:
    dtype = dtype_of(*values)
    register = REGISTER[dtype]
    texts = [_cast(register, one) for one in values]
    if register in ("i32", "i64"):
        return narrowed(dtype, f"otr_{name}_{register}({', '.join(texts)})")
    return f"({texts[0]} {sign} {texts[1]})" if len(texts) == 2 else f"({sign}{texts[0]})"


def _divided(name: str, sign: str, a: Any, b: Any) -> str:
    dtype = dtype_of(a, b)
    register = REGISTER[dtype]
    a, b = _cast(register, a), _cast(register, b)
    if register in ("u32", "u64"):
        return f"({b} == 0 ? 0 : {a} {sign} ({b} == 0 ? 1 : {b}))"
    return narrowed(dtype, f"otr_{name}_{register}({a}, {b})")


def _compared(sign: str, a: Any, b: Any) -> str:
    register = REGISTER[dtype_of(a, b)]
    return f"({_cast(register, a)} {sign} {_cast(register, b)})"


def _bits(sign: str, a: Any, b: Any) -> str:
    register = REGISTER[dtype_of(a, b)]
    return f"({_cast(register, a)} {sign} {_cast(register, b)})"


def _width(dtype: torch.dtype) -> int:
    return dtype.itemsize * 8


class Overrides(OpOverrides):
    """The text of each operator in the dialect."""

    # ---- numbers and types ----

    @staticmethod
    def constant(value: Any, dtype: torch.dtype) -> str:
        return literal(value, REGISTER[dtype])

    @staticmethod
    def to_dtype(
        x: Any, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> str:
        source = x.dtype if isinstance(x, CSEVariable) and x.dtype is not None else src_dtype or torch.float32
        register, before = REGISTER[dtype], REGISTER[source]
        if dtype == torch.bool:
            return str(x) if source == torch.bool else f"({x} != 0)"
        if before in FLOATS and register not in FLOATS:
            through = "i64" if register in ("u32", "u64") else register
            return narrowed(dtype, f"({register})OTR_CONVERT({before}, {through}, {x})")
        text = narrowed(dtype, f"({register}){x}") if source != dtype else str(x)
        if dtype in NARROW_FLOATS and not use_compute_types:
            name = MEMORY[dtype]
            return f"otr_of_{name}(otr_to_{name}({text}))"
        return text

    @staticmethod
    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        def bits_of() -> str:
            if src_dtype in NARROW_FLOATS:
                return f"otr_to_{MEMORY[src_dtype]}({x})"
            return f"otr_bits_{REGISTER[src_dtype]}({x})" if src_dtype.is_floating_point else str(x)

        if dtype in NARROW_FLOATS:
            return f"otr_of_{MEMORY[dtype]}(({'u16' if dtype.itemsize == 2 else 'u8'}){bits_of()})"
        if dtype.is_floating_point:
            unsigned = "u32" if dtype == torch.float32 else "u64"
            return f"otr_of_bits_{REGISTER[dtype]}(({unsigned}){bits_of()})"
        return f"({REGISTER[dtype]})({MEMORY[dtype]})({bits_of()})"

    @staticmethod
    def index_expr(expr: sympy.Expr, dtype: torch.dtype) -> Any:
        kernel = V.kernel
        found = kernel.wide if is_real(expr) else torch.int64
        var = kernel.cse.generate(
            kernel.compute,
            kernel.index_to_str(kernel.prepare_indexing(expr)),
            bounds=get_bounds_index_expr(expr),
            dtype=found,
        )
        return ops.to_dtype(var, dtype)

    value_expr = index_expr

    def indirect_indexing(
        self, var: CSEVariable, size: sympy.Expr | int, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        return V.kernel.within(var, sympy.sympify(size), check)

    @staticmethod
    def masked(mask: Any, body: Callable[[], Any], other: Any) -> CSEVariable:
        kernel, scoped = V.kernel, IndentedBuffer()
        with kernel.swap_buffers(scoped):
            result = body()
        dtype = result.dtype
        register = REGISTER[dtype]
        var = kernel.cse.newvar(dtype=dtype)
        kernel.compute.writeline(f"{register} {var} = {literal(other, register)};")
        kernel.compute.writeline(f"if ({mask}) {{")
        with kernel.compute.indent():
            kernel.compute.splice(scoped)
            kernel.compute.writeline(f"{var} = {result};")
        kernel.compute.writeline("}")
        kernel.note(var)
        return var

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> str:
        register = REGISTER[dtype_of(a, b)]
        return f"({condition} ? {_cast(register, a)} : {_cast(register, b)})"

    # ---- arithmetic ----

    @staticmethod
    def add(a: Any, b: Any) -> str:
        return _arithmetic("add", "+", a, b)

    @staticmethod
    def sub(a: Any, b: Any) -> str:
        return _arithmetic("sub", "-", a, b)

    @staticmethod
    def mul(a: Any, b: Any) -> str:
        return _arithmetic("mul", "*", a, b)

    @staticmethod
    def neg(x: Any) -> str:
        return _arithmetic("neg", "-", x)

    @staticmethod
    def fma(x: Any, y: Any, z: Any) -> str:
        register = float_of(x, y, z)
        return f"otr_fma_{register}({_cast(register, x)}, {_cast(register, y)}, {_cast(register, z)})"

    @staticmethod
    def abs(x: Any) -> str:
        dtype = dtype_of(x)
        if dtype == torch.bool or REGISTER[dtype] in ("u32", "u64"):
            return str(x)
        return narrowed(dtype, f"otr_abs_{REGISTER[dtype]}({x})")

    @staticmethod
    def sign(x: Any) -> str:
        register = REGISTER[dtype_of(x)]
        return f"({register})(({x} > 0) - ({x} < 0))"

    @staticmethod
    def signbit(x: Any) -> str:
        register = REGISTER[dtype_of(x)]
        if register in FLOATS:
            return f"(i32)(otr_bits_{register}({x}) >> {31 if register == 'f32' else 63})"
        return f"({x} < 0)"

    @staticmethod
    def truediv(a: Any, b: Any) -> str:
        register = float_of(a, b)
        return f"({_cast(register, a)} / {_cast(register, b)})"

    @staticmethod
    def int_truediv(a: Any, b: Any) -> str:
        return f"((f32){a} / (f32){b})"

    @staticmethod
    def div_rn(a: Any, b: Any) -> str:
        return Overrides.truediv(a, b)

    @staticmethod
    def mul_rn(a: Any, b: Any) -> str:
        return Overrides.mul(a, b)

    @staticmethod
    def floordiv(a: Any, b: Any) -> str:
        return _divided("div_floor", "/", a, b)

    @staticmethod
    def truncdiv(a: Any, b: Any) -> str:
        return _divided("div_trunc", "/", a, b)

    @staticmethod
    def remainder(a: Any, b: Any) -> str:
        return _divided("remainder", "%", a, b)

    @staticmethod
    def mod(a: Any, b: Any) -> str:
        return _divided("fmod", "%", a, b)

    @staticmethod
    def fmod(a: Any, b: Any) -> str:
        return _divided("fmod", "%", a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> str:
        register = REGISTER[dtype_of(a, b)]
        return f"otr_max_{register}({_cast(register, a)}, {_cast(register, b)})"

    @staticmethod
    def minimum(a: Any, b: Any) -> str:
        register = REGISTER[dtype_of(a, b)]
        return f"otr_min_{register}({_cast(register, a)}, {_cast(register, b)})"

    @staticmethod
    def pow(a: Any, b: Any) -> str:
        dtype = dtype_of(a, b)
        register = REGISTER[dtype]
        if register in FLOATS:
            return f"otr_pow_{register}({_cast(register, a)}, {_cast(register, b)})"
        return narrowed(dtype, f"({register})otr_pow_i64({_cast('i64', a)}, {_cast('i64', b)})")

    @staticmethod
    def round(x: Any) -> str:
        return f"otr_round_{float_of(x)}({x})" if REGISTER[dtype_of(x)] in FLOATS else str(x)

    @staticmethod
    def isnan(x: Any) -> str:
        return f"({x} != {x})"

    @staticmethod
    def isinf(x: Any) -> str:
        register = float_of(x)
        return f"(otr_abs_{register}({_cast(register, x)}) == ({register})OTR_INFINITY_F32)"

    # ---- comparisons, logic, bits ----

    @staticmethod
    def eq(a: Any, b: Any) -> str:
        return _compared("==", a, b)

    @staticmethod
    def ne(a: Any, b: Any) -> str:
        return _compared("!=", a, b)

    @staticmethod
    def lt(a: Any, b: Any) -> str:
        return _compared("<", a, b)

    @staticmethod
    def le(a: Any, b: Any) -> str:
        return _compared("<=", a, b)

    @staticmethod
    def gt(a: Any, b: Any) -> str:
        return _compared(">", a, b)

    @staticmethod
    def ge(a: Any, b: Any) -> str:
        return _compared(">=", a, b)

    # Of truths, which are 0 or 1, `&` is `&&` without a branch.
    @staticmethod
    def logical_and(a: Any, b: Any) -> str:
        return f"(({a} != 0) & ({b} != 0))"

    @staticmethod
    def logical_or(a: Any, b: Any) -> str:
        return f"(({a} != 0) | ({b} != 0))"

    @staticmethod
    def logical_xor(a: Any, b: Any) -> str:
        return f"(({a} != 0) != ({b} != 0))"

    @staticmethod
    def logical_not(a: Any) -> str:
        return f"({a} == 0)"

    @staticmethod
    def bitwise_and(a: Any, b: Any) -> str:
        return _bits("&", a, b)

    @staticmethod
    def bitwise_or(a: Any, b: Any) -> str:
        return _bits("|", a, b)

    @staticmethod
    def bitwise_xor(a: Any, b: Any) -> str:
        return _bits("^", a, b)

    and_, or_, xor = bitwise_and, bitwise_or, bitwise_xor

    @staticmethod
    def bitwise_not(a: Any) -> str:
        dtype = dtype_of(a)
        return f"({a} == 0)" if dtype == torch.bool else narrowed(dtype, f"~{a}")

    @staticmethod
    def bitwise_left_shift(a: Any, b: Any) -> str:
        dtype = dtype_of(a, b)
        register, width = REGISTER[dtype], _width(dtype)
        unsigned = "u64" if register in ("i64", "u64") else "u32"
        shifted = f"({register})(({unsigned}){a} << (u32)({b} & {width - 1}))"
        return narrowed(dtype, f"((u64){b} >= {width}u ? ({register})0 : {shifted})")

    @staticmethod
    def bitwise_right_shift(a: Any, b: Any) -> str:
        dtype = dtype_of(a, b)
        register, width = REGISTER[dtype], _width(dtype)
        beyond = f"({register})({a} < 0 ? -1 : 0)" if register in ("i32", "i64") else f"({register})0"
        return f"((u64){b} >= {width}u ? {beyond} : {_cast(register, a)} >> (u32)({b} & {width - 1}))"

    lshift, rshift = bitwise_left_shift, bitwise_right_shift


def _float_function(name: str) -> Callable[..., str]:
    def text(*values: Any) -> str:
        dtype = dtype_of(*values)
        if name in ("floor", "ceil", "trunc") and REGISTER[dtype] not in FLOATS:
            return str(values[0])
        register = float_of(*values)
        return f"otr_{name}_{register}({', '.join(_cast(register, one) for one in values)})"

    text.__name__ = name
    return text


for _name in UNARY:
    setattr(Overrides, _name, staticmethod(_float_function(_name)))
for _name in BINARY:
    if _name != "pow":
        setattr(Overrides, _name, staticmethod(_float_function(_name)))

