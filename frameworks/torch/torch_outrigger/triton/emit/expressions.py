"""The C expression of each operation that works on elements."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..ttir import Operation, Type
from .values import BITS, FLOATS, ROUNDED, SMALL_FLOATS, UNSIGNED, of_bits, register, rounded, to_bits

Made = Callable[[Operation, list[str], list[Type], str], str]
"""Gives an expression out of an operation, the expressions of its operands, their types, and the element of the result."""

EXPRESSIONS: dict[str, Made] = {}


def expression(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    """The expression of an operation's result."""
    return EXPRESSIONS[operation.name](operation, given, types, element)


def _made_by(*names: str) -> Callable[[Made], Made]:
    def note(made: Made) -> Made:
        EXPRESSIONS.update(dict.fromkeys(names, made))
        return made

    return note


def _computed_in(element: str) -> str:
    """The type without a sign in which small integers are computed, as C does."""
    return "u32" if element in ("i1", "i8", "i16") else UNSIGNED[element]


# ---- integers ----

_SIGNS = {"addi": "+", "subi": "-", "muli": "*", "andi": "&", "ori": "|", "xori": "^"}
_SIGNS_OF_TRUTH = {**_SIGNS, "addi": "^", "subi": "^", "muli": "&"}


@_made_by(*(f"arith.{one}" for one in _SIGNS))
def _arithmetic(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    name = operation.name.removeprefix("arith.")
    if element == "i1":
        return f"({given[0]} {_SIGNS_OF_TRUTH[name]} {given[1]})"
    of = _computed_in(element)
    return f"({register(element)})(({of}){given[0]} {_SIGNS[name]} ({of}){given[1]})"


_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@_made_by("arith.cmpi")
def _compare(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    predicate, of = operation.words()[0], types[0].element
    sign = _COMPARISONS[predicate.removeprefix("s").removeprefix("u")]
    if of == "i1" and predicate[0] == "s":
        return f"(-{given[0]} {sign} -{given[1]})"
    cast = f"({UNSIGNED[of]})" if predicate[0] == "u" else ""
    return f"({cast}{given[0]} {sign} {cast}{given[1]})"


def _is_positive(text: str) -> bool:
    found = re.fullmatch(r"(?:\(i64\))?(\d+)", text)
    return found is not None and int(found[1]) > 0


@_made_by("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi")
def _divide(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    number = "i64" if element in ("i64", "index") else "i32"
    x, y = given
    if operation.name == "arith.ceildivsi":
        return f"({register(element)})otr_neg_{number}(otr_div_floor_{number}(otr_neg_{number}({x}), {y}))"
    if operation.name != "arith.floordivsi" and _is_positive(y):
        return f"({register(element)})({x} {'/' if operation.name == 'arith.divsi' else '%'} {y})"
    name = {"arith.divsi": "div_trunc", "arith.remsi": "fmod", "arith.floordivsi": "div_floor"}[operation.name]
    return f"({register(element)})otr_{name}_{number}({x}, {y})"


@_made_by("arith.divui", "arith.remui", "arith.ceildivui")
def _divide_unsigned(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of = UNSIGNED[element]
    x, y = (f"({of}){one}" for one in given)
    sign = "%" if operation.name == "arith.remui" else "/"
    result = f"{x} {sign} ({y} + ({y} == 0))"
    if operation.name == "arith.ceildivui":
        result = f"({x} == 0 ? 0 : ({x} - 1) / ({y} + ({y} == 0)) + 1)"
    return f"({register(element)})({y} == 0 ? 0 : {result})"


@_made_by("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    bits, of, result = BITS[element], UNSIGNED[element], register(element)
    x, y = given
    fits = f"(u64){y} < {bits}"
    if operation.name == "arith.shrsi":
        x = f"-{x}" if element == "i1" else x
        return f"({result})({x} >> ({fits} ? {y} : {bits - 1}){' & 1' if element == 'i1' else ''})"
    sign = "<<" if operation.name == "arith.shli" else ">>"
    return f"({result})({fits} ? ({of}){x} {sign} ({y} & {max(bits - 1, 1)}) : 0)"


@_made_by("arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui")
def _extreme(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    name = operation.name.removeprefix("arith.")
    cast = f"({UNSIGNED[element]})" if name[3] == "u" else "-" if element == "i1" else ""
    return f"({cast}{given[0]} {'>' if name.startswith('max') else '<'} {cast}{given[1]} ? {given[0]} : {given[1]})"


@_made_by("math.absi")
def _absolute(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"({register(element)})({given[0]} < 0 ? 0 - ({_computed_in(element)}){given[0]} : ({_computed_in(element)}){given[0]})"


@_made_by("tt.mulhiui")
def _high_product(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of = UNSIGNED[element]
    if of not in ("u32", "u64"):
        raise operation.refused(f"has no form on {element}")
    return f"({register(element)})otr_mul_high_{of}(({of}){given[0]}, ({of}){given[1]})"


# ---- floating-point numbers ----

_FLOAT_SIGNS = {"addf": "+", "subf": "-", "mulf": "*", "divf": "/"}


@_made_by(*(f"arith.{one}" for one in _FLOAT_SIGNS))
def _float_arithmetic(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return rounded(element, f"({given[0]} {_FLOAT_SIGNS[operation.name.removeprefix('arith.')]} {given[1]})")


@_made_by("tt.precise_divf", "tt.approx_divf")
def _quotient(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return rounded(element, f"({given[0]} / {given[1]})")


@_made_by("arith.negf")
def _negative(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"(-{given[0]})"


_FLOAT_COMPARISONS = {
    "oeq": "({0} == {1})",
    "ogt": "({0} > {1})",
    "oge": "({0} >= {1})",
    "olt": "({0} < {1})",
    "ole": "({0} <= {1})",
    "one": "({0} < {1} || {0} > {1})",
    "ord": "({0} == {0} && {1} == {1})",
    "ueq": "(!({0} < {1} || {0} > {1}))",
    "ugt": "(!({0} <= {1}))",
    "uge": "(!({0} < {1}))",
    "ult": "(!({0} >= {1}))",
    "ule": "(!({0} > {1}))",
    "une": "({0} != {1})",
    "uno": "({0} != {0} || {1} != {1})",
    "false": "0",
    "true": "1",
}


@_made_by("arith.cmpf")
def _compare_floats(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return _FLOAT_COMPARISONS[operation.words()[0]].format(*given)


_EXTREMES = {
    "arith.maximumf": "otr_max",
    "arith.minimumf": "otr_min",
    "arith.maxnumf": "triton_maxnum",
    "arith.minnumf": "triton_minnum",
}
"""NaN wins in maximumf and minimumf, and a number in maxnumf and minnumf."""


@_made_by(*_EXTREMES)
def _float_extreme(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"{_EXTREMES[operation.name]}_{register(element)}({given[0]}, {given[1]})"


@_made_by("tt.clampf")
def _clamp(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of, x = register(element), given[0]
    cut = f"triton_minnum_{of}(triton_maxnum_{of}({x}, {given[1]}), {given[2]})"
    return f"({x} != {x} ? {x} : {cut})" if operation.attribute("propagateNan") == "all" else cut


_FUNCTIONS = {
    **{
        f"math.{one}": one
        for one in (
            "exp exp2 expm1 log log2 log1p log10 sqrt rsqrt cbrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
            "erf erfc floor ceil trunc copysign fma"
        ).split()
    },
    "math.absf": "abs",
    "math.powf": "pow",
    "math.round": "round_away",
    "math.roundeven": "round",
    "arith.remf": "fmod",
    "tt.precise_sqrt": "sqrt",
}
"""Functions of the dialect."""


@_made_by(*_FUNCTIONS)
def _function(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    if element in SMALL_FLOATS:
        if operation.name != "math.absf":
            raise operation.refused(f"has no form on {element}")
        return f"(u8)({given[0]} & 0x7f)"
    return rounded(element, f"otr_{_FUNCTIONS[operation.name]}_{register(element)}({', '.join(given)})")


# ---- choices and conversions ----


@_made_by("arith.select")
def _select(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"({given[0]} ? {given[1]} : {given[2]})"


@_made_by("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui")
def _resize(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of = types[0].element
    if element == "i1":
        return f"(i32)({given[0]} & 1)"
    if of == "i1":
        return f"({register(element)}){'-' if operation.name == 'arith.extsi' else ''}{given[0]}"
    cast = f"({UNSIGNED[of]})" if operation.name in ("arith.extui", "arith.index_castui") else ""
    return f"({register(element)}){cast}{given[0]}"


@_made_by("arith.sitofp", "arith.uitofp")
def _to_float(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of = types[0].element
    cast = f"({UNSIGNED[of]})" if operation.name == "arith.uitofp" else "-" if of == "i1" else ""
    return rounded(element, f"({register(element)}){cast}{given[0]}")


@_made_by("arith.fptosi", "arith.fptoui")
def _to_integer(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    if element == "i1":
        return f"({given[0]} != 0)"
    if operation.name == "arith.fptoui":
        # C leaves open what becomes of a number that does not fit, so a larger type with a sign comes first.
        return f"({register(element)})({UNSIGNED[element]}){'' if element == 'i64' else '(i64)'}{given[0]}"
    return f"({register(element)}){'(i32)' if element in ('i8', 'i16') else ''}{given[0]}"


@_made_by("arith.extf")
def _widen(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"({register(element)}){given[0]}"


def _narrowed(given: str, of: str, element: str) -> str:
    """A floating-point number in a smaller type, rounded once."""
    if element == "f32":
        return f"(f32){given}"
    return rounded(element, f"triton_odd_f32({given})" if of == "f64" else given)


@_made_by("arith.truncf")
def _narrow(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return _narrowed(given[0], types[0].element, element)


@_made_by("tt.fp_to_fp")
def _convert(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of = types[0].element
    number = of_bits(of, given[0]) if of in SMALL_FLOATS else given[0]
    if element in SMALL_FLOATS:
        return to_bits(element, f"triton_odd_f32({number})" if of == "f64" else number)
    if element in ROUNDED and operation.attribute("rounding") == "rtz":
        return f"triton_cut_{element}((f32){number})"
    return _narrowed(number, of, element)


@_made_by("arith.bitcast", "tt.bitcast")
def _bitcast(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of = types[0].element
    if of == element:
        return given[0]
    if element.startswith("ptr "):
        return f"(({register(element)}){given[0]})"
    bits = to_bits(of, given[0]) if of in FLOATS else given[0]
    if element in FLOATS:
        return of_bits(element, f"(u{BITS[element]}){bits}")
    return f"({register(element)}){bits}" if element != "i1" else f"({bits} & 1)"


# ---- pointers ----


@_made_by("tt.addptr")
def _moved(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"({given[0]} + {given[1]})"


@_made_by("tt.int_to_ptr")
def _pointer(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"(({register(element)}){given[0]})"


@_made_by("tt.ptr_to_int")
def _address(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    return f"((i64){given[0]})"


# ---- bits ----


@_made_by("math.ctpop", "math.ctlz", "math.cttz")
def _count_bits(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    of, bits = UNSIGNED[element], BITS[element]
    x = f"(u64)({of}){given[0]}"
    if operation.name == "math.ctpop":
        return f"({register(element)})otr_popcount_u64({x})"
    if operation.name == "math.ctlz":
        return f"({register(element)})(otr_clz_u64({x}) - {64 - bits})"
    return f"({register(element)})({given[0]} == 0 ? {bits} : {_zeros_below(x)})"


def _zeros_below(x: str) -> str:
    return f"otr_popcount_u64(({x} & (0 - {x})) - 1)"


# ---- libdevice ----

_OF_DIALECT = {
    **{
        one: one
        for one in (
            "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt cbrt pow hypot sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
            "atanh erf erfc lgamma tgamma floor ceil trunc fmod ldexp logb nextafter fdim copysign fma"
        ).split()
    },
    **{f"fast_{one}": one for one in "exp log log2 log10 sin cos tan pow".split()},
    "fabs": "abs",
    "rint": "round",
    "nearbyint": "round",
    "round": "round_away",
    "remainder": "ieee_remainder",
}
"""Functions of libdevice and those of the dialect. The name has an f behind it where it is for f32."""

_WRITTEN_OUT = {
    "llrint": "(i64)otr_round_{of}({0})",
    "llround": "(i64)otr_round_away_{of}({0})",
    "ilogb": "(i32)otr_logb_{of}({0})",
    "rcbrt": "(1 / otr_cbrt_{of}({0}))",
    "exp10": "({of})otr_pow_f64(10.0, (f64){0})",
}

_EXACT = {
    "abs": "otr_abs_i32({0})",
    "llabs": "otr_abs_i64({0})",
    "fast_fdividef": "({0} / {1})",
    "isnand": "({0} != {0})",
    "isnanf": "({0} != {0})",
    "isinfd": "(otr_abs_f64({0}) == (f64)OTR_INFINITY_F32)",
    "isinff": "(otr_abs_f32({0}) == OTR_INFINITY_F32)",
    "isfinited": "(otr_abs_f64({0}) < (f64)OTR_INFINITY_F32)",
    "finitef": "(otr_abs_f32({0}) < OTR_INFINITY_F32)",
    "signbitf": "(i32)(otr_bits_f32({0}) >> 31)",
    "signbitd": "(i32)(otr_bits_f64({0}) >> 63)",
    "popc": "otr_popcount_u32((u32){0})",
    "popcll": "otr_popcount_u64((u64){0})",
    "clz": "otr_clz_u32((u32){0})",
    "clzll": "otr_clz_u64((u64){0})",
    "ffs": f"({{0}} == 0 ? 0 : {_zeros_below('(u64)(u32){0}')} + 1)",
    "ffsll": f"({{0}} == 0 ? 0 : {_zeros_below('(u64){0}')} + 1)",
    "umulhi": "(i32)otr_mul_high_u32((u32){0}, (u32){1})",
    "umul64hi": "(i64)otr_mul_high_u64((u64){0}, (u64){1})",
    "float_as_int": "(i32)otr_bits_f32({0})",
    "float_as_uint": "(i32)otr_bits_f32({0})",
    "int_as_float": "otr_of_bits_f32((u32){0})",
    "uint_as_float": "otr_of_bits_f32((u32){0})",
    "double_as_longlong": "(i64)otr_bits_f64({0})",
    "longlong_as_double": "otr_of_bits_f64((u64){0})",
    "saturatef": "triton_minnum_f32(triton_maxnum_f32({0}, 0.0f), 1.0f)",
    "frsqrt_rn": "otr_rsqrt_f32({0})",
    **{f"{kind}{name}_rn": f"({{0}} {sign} {{1}})" for kind in "fd" for name, sign in zip(("add", "sub", "mul", "div"), "+-*/", strict=True)},
    **{f"{kind}rcp_rn": f"(1 / {{0}})" for kind in "fd"},
    "fsqrt_rn": "otr_sqrt_f32({0})",
    "dsqrt_rn": "otr_sqrt_f64({0})",
}
"""Functions that have no such form."""


@_made_by("tt.extern_elementwise")
def _libdevice(operation: Operation, given: list[str], types: list[Type], element: str) -> str:
    symbol = operation.strings[-1] if operation.strings else "a function without a name"
    name, of = symbol.removeprefix("__nv_"), register(types[0].element)
    if name in _EXACT:
        return _EXACT[name].format(*given)
    # A name that ends with f by itself, as erf, is tried first.
    for base in (name, name.removesuffix("f")):
        if base in _OF_DIALECT:
            return f"otr_{_OF_DIALECT[base]}_{of}({', '.join(given)})"
        if base in _WRITTEN_OUT:
            return _WRITTEN_OUT[base].format(*given, of=of)
    raise operation.refused(f"asks for libdevice's {symbol}, which has no form on this device")
