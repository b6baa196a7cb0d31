"""Sizes and indices as text of the dialect.

All integers are i64. It must never print a division whose operands may be negative as the one of C, which cuts: only
`FloorDiv` and `ModularIndexing` of what cannot be negative are.
"""

from __future__ import annotations

import functools

import sympy
from torch.utils._sympy import functions as sizes
from torch.utils._sympy.printers import ExprPrinter

from .types import literal

_REAL = (sympy.Float, sizes.FloatPow, sizes.FloatTrueDiv, sizes.IntTrueDiv, sizes.ToFloat)


def is_real(expr: sympy.Expr) -> bool:
    """Whether an expression is of a real type. sympy does not know of a quotient that it is no whole number."""
    return expr.is_integer is False or (expr.is_integer is None and expr.has(*_REAL))


class Printer(ExprPrinter):
    """Prints an expression. Real numbers are of the widest type that the device has."""

    def _print_Integer(self, expr: sympy.Integer) -> str:
        value = int(expr)
        return str(value) if abs(value) < 2**31 else literal(value, "i64")

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return str(expr.name)

    def _print_bool(self, expr: object) -> str:
        return "1" if expr else "0"

    _print_BooleanTrue = _print_BooleanFalse = _print_bool

    def _call(self, function: str, expr: sympy.Expr) -> str:
        return f"{function}({', '.join(self.doprint(one) for one in expr.args)})"

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:
        x, by = expr.args
        if expr.is_integer and x.is_nonnegative and by.is_positive:
            return f"(({self.doprint(x)}) / ({self.doprint(by)}))"
        return f"otr_div_floor_i64({self.doprint(x)}, {self.doprint(by)})"

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        return self._print_FloorDiv(expr)

    def _print_CeilDiv(self, expr: sympy.Expr) -> str:
        return f"(-otr_div_floor_i64(-({self.doprint(expr.args[0])}), {self.doprint(expr.args[1])}))"

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:
        x, by, size = expr.args
        text = self.doprint(x)
        if x.is_nonnegative is False or (x.is_nonnegative is None and x.could_extract_minus_sign()):
            text = f"otr_div_floor_i64({text}, {self.doprint(by)})"
            return f"otr_remainder_i64({text}, {self.doprint(size)})"
        if by != 1:
            text = f"({text}) / ({self.doprint(by)})"
        return f"(({text}) % ({self.doprint(size)}))"

    def _print_Mod(self, expr: sympy.Expr) -> str:
        return self._call("otr_remainder_i64", expr)

    _print_PythonMod = _print_Mod

    def _folded(self, function: str, expr: sympy.Expr) -> str:
        kind = "i64" if expr.is_integer else "OTR_WIDE"
        texts = [self.doprint(one) for one in expr.args]
        return functools.reduce(lambda a, b: f"OTR_CALL({function}, {kind})({a}, {b})", texts)

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._folded("min", expr)

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._folded("max", expr)

    def _print_Where(self, expr: sympy.Expr) -> str:
        condition, then, other = (self.doprint(one) for one in expr.args)
        return f"(({condition}) ? ({then}) : ({other}))"

    def _print_Piecewise(self, expr: sympy.Expr) -> str:
        text = "0"
        for value, condition in reversed(expr.args):
            text = f"(({self.doprint(condition)}) ? ({self.doprint(value)}) : ({text}))"
        return text

    def _print_Relational(self, expr: sympy.Expr) -> str:
        left, right = (self.doprint(one) for one in expr.args)
        return f"(({left}) {expr.rel_op} ({right}))"

    def _print_And(self, expr: sympy.Expr) -> str:
        return "(" + " && ".join(f"({self.doprint(one)})" for one in expr.args) + ")"

    def _print_Or(self, expr: sympy.Expr) -> str:
        return "(" + " || ".join(f"({self.doprint(one)})" for one in expr.args) + ")"

    def _print_Not(self, expr: sympy.Expr) -> str:
        return f"(!({self.doprint(expr.args[0])}))"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:
        x, by = (self.doprint(one) for one in expr.args)
        return f"((OTR_WIDE)({x}) / (OTR_WIDE)({by}))"

    _print_FloatTrueDiv = _print_IntTrueDiv

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"((OTR_WIDE)({self.doprint(expr.args[0])}))"

    def _whole(self, function: str, expr: sympy.Expr) -> str:
        return f"((i64)OTR_CALL({function}, OTR_WIDE)((OTR_WIDE)({self.doprint(expr.args[0])})))"

    def _print_FloorToInt(self, expr: sympy.Expr) -> str:
        return self._whole("floor", expr)

    def _print_floor(self, expr: sympy.Expr) -> str:
        return self._whole("floor", expr)

    def _print_CeilToInt(self, expr: sympy.Expr) -> str:
        return self._whole("ceil", expr)

    def _print_ceiling(self, expr: sympy.Expr) -> str:
        return self._whole("ceil", expr)

    def _print_TruncToInt(self, expr: sympy.Expr) -> str:
        return self._whole("trunc", expr)

    def _print_RoundToInt(self, expr: sympy.Expr) -> str:
        return self._whole("round", expr)

    def _print_Abs(self, expr: sympy.Expr) -> str:
        return f"OTR_CALL(abs, {'i64' if expr.args[0].is_integer else 'OTR_WIDE'})({self.doprint(expr.args[0])})"

    def _print_PowByNatural(self, expr: sympy.Expr) -> str:
        return self._call("otr_pow_i64", expr)

    def _print_FloatPow(self, expr: sympy.Expr) -> str:
        return self._call("OTR_CALL(pow, OTR_WIDE)", expr)

    def _print_Pow(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        if exponent == sympy.Rational(1, 2):
            return f"OTR_CALL(sqrt, OTR_WIDE)({self.doprint(base)})"
        if exponent.is_integer and exponent.is_number and 0 < int(exponent) <= 8:
            return "(" + " * ".join([f"({self.doprint(base)})"] * int(exponent)) + ")"
        kind = "i64" if expr.is_integer else "OTR_WIDE"
        return f"OTR_CALL(pow, {kind})({self.doprint(base)}, {self.doprint(exponent)})"

    def _print_Rational(self, expr: sympy.Rational) -> str:
        return f"((OTR_WIDE){int(expr.p)} / (OTR_WIDE){int(expr.q)})"

    def _print_Float(self, expr: sympy.Float) -> str:
        return f"((OTR_WIDE){float(expr)!r})"

    def _print_Infinity(self, expr: sympy.Expr) -> str:
        return "((OTR_WIDE)OTR_INFINITY_F32)"

    def _print_NegativeInfinity(self, expr: sympy.Expr) -> str:
        return "((OTR_WIDE)-OTR_INFINITY_F32)"

    def _print_Identity(self, expr: sympy.Expr) -> str:
        return f"({self.doprint(expr.args[0])})"

    def _print_LShift(self, expr: sympy.Expr) -> str:
        return f"(({self.doprint(expr.args[0])}) << ({self.doprint(expr.args[1])}))"

    def _print_RShift(self, expr: sympy.Expr) -> str:
        return f"(({self.doprint(expr.args[0])}) >> ({self.doprint(expr.args[1])}))"

    def _print_BitwiseFn_bitwise_and(self, expr: sympy.Expr) -> str:
        return f"(({self.doprint(expr.args[0])}) & ({self.doprint(expr.args[1])}))"

    def _print_BitwiseFn_bitwise_or(self, expr: sympy.Expr) -> str:
        return f"(({self.doprint(expr.args[0])}) | ({self.doprint(expr.args[1])}))"

    def _print_BitwiseFn_bitwise_xor(self, expr: sympy.Expr) -> str:
        return f"(({self.doprint(expr.args[0])}) ^ ({self.doprint(expr.args[1])}))"


for _name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log"):
    setattr(
        Printer,
        f"_print_OpaqueUnaryFn_{_name}",
        lambda self, expr, name=_name: f"OTR_CALL({name}, OTR_WIDE)((OTR_WIDE)({self.doprint(expr.args[0])}))",
    )

text_of = Printer().doprint
"""An expression as text."""
