"""Functions in the dialect that kernels of Triton use besides it."""

from __future__ import annotations

from ..ttir import Refused
from .values import BITS, of_bits, register, to_bits

BASIC = r"""
#define TRITON_NUMBERS(T) \
  /* A number wins over NaN. */ \
  OTR_FUNCTION T triton_maxnum_##T(T x, T y) { return x != x || y > x ? y : x; } \
  OTR_FUNCTION T triton_minnum_##T(T x, T y) { return x != x || y < x ? y : x; }
TRITON_NUMBERS(f32)
#if OTR_HAS_F64
TRITON_NUMBERS(f64)
/* The cut to f32 keeps in the last bit whether something was cut, so that a second rounding is right. */
OTR_FUNCTION f32 triton_odd_f32(f64 x) {
  f32 near = (f32)x;
  u32 bits = otr_bits_f32(near);
  if ((f64)near == x || x != x || (bits & 1)) return near;
  return otr_of_bits_f32(otr_abs_f64((f64)near) > otr_abs_f64(x) ? bits - 1 : bits + 1);
}
#endif
OTR_FUNCTION f32 triton_exp2_f32(f32 x) {
  f32 cut = x > 130.0f ? 130.0f : x < -152.0f ? -152.0f : x;
  f32 near = cut + 12582912.0f, r = (cut - (near - 12582912.0f)) * 0.69314718f;
  i32 power = (i32)(otr_bits_f32(near) - otr_bits_f32(12582912.0f)), part = power >> 1;
  f32 p = otr_fma_f32(1.98914799e-4f, r, 1.39340904e-3f);
  p = otr_fma_f32(p, r, 8.33331048e-3f);
  p = otr_fma_f32(p, r, 4.16664609e-2f);
  p = otr_fma_f32(p, r, 1.66666667e-1f);
  p = otr_fma_f32(p, r, 0.5f);
  p = otr_fma_f32(p, r * r, r) + 1.0f;
  /* The power of two is two factors, so that neither overflows where the result does not. */
  p = p * otr_of_bits_f32((u32)(part + 127) << 23) * otr_of_bits_f32((u32)(power - part + 127) << 23);
  return x != x ? x : p;
}
OTR_FUNCTION i32 triton_ones(u64 x) {
  x -= (x >> 1) & (u64)0x5555555555555555;
  x = (x & (u64)0x3333333333333333) + ((x >> 2) & (u64)0x3333333333333333);
  return (i32)((((x + (x >> 4)) & (u64)0x0f0f0f0f0f0f0f0f) * (u64)0x0101010101010101) >> 56);
}
OTR_FUNCTION i32 triton_zeros_below(u64 x) { return triton_ones((x & (0 - x)) - 1); }
OTR_FUNCTION i32 triton_zeros_above(u64 x) {
  for (i32 by = 1; by < 64; by *= 2) x |= x >> by;
  return 64 - triton_ones(x);
}
/* Whether integers of an i32 that grow from the first to the last do not wrap. */
OTR_FUNCTION i32 triton_fits(i64 first, i64 last) { return first >= -(i64)0x80000000 && last <= (i64)0x7fffffff; }
OTR_FUNCTION u8 triton_to_f8e4m3(f32 x) {
  return otr_to_f8e4m3(x != x ? x : x > 448.0f ? 448.0f : x < -448.0f ? -448.0f : x);
}
OTR_FUNCTION f32 triton_cut_bf16(f32 x) { return x != x ? x : otr_of_bits_f32(otr_bits_f32(x) & 0xffff0000u); }
OTR_FUNCTION f32 triton_cut_f16(f32 x) {
  u16 bits = otr_to_f16(x);
  return x == x && otr_abs_f32(otr_of_f16(bits)) > otr_abs_f32(x) ? otr_of_f16((u16)(bits - 1)) : otr_of_f16(bits);
}
"""

_WORD = r"""
/* 16 bits are exchanged with the 32 bits around them. */
OTR_FUNCTION u16 triton_cas_u16(OTR_GLOBAL u16* p, u16 expected, u16 next) {
  OTR_GLOBAL u32* word = (OTR_GLOBAL u32*)((u64)p & ~(u64)3);
  u32 shift = (u32)((u64)p & 2) * 8, old = otr_atomic_load_u32(word);
  for (;;) {
    if ((u16)(old >> shift) != expected) return (u16)(old >> shift);
    u32 seen = otr_atomic_cas_u32(word, old, (old & ~((u32)0xffff << shift)) | ((u32)next << shift));
    if (seen == old) return expected;
    old = seen;
  }
}
OTR_FUNCTION u16 triton_load_u16(OTR_GLOBAL u16* p) {
  return (u16)(otr_atomic_load_u32((OTR_GLOBAL u32*)((u64)p & ~(u64)3)) >> ((u32)((u64)p & 2) * 8));
}
"""

_JOINED = {
    "and": "x & y",
    "or": "x | y",
    "xor": "x ^ y",
    "add": "x + y",
    "fadd": "x + y",
    "max": "y > x ? y : x",
    "min": "y < x ? y : x",
    "umax": "({u})y > ({u})x ? y : x",
    "umin": "({u})y < ({u})x ? y : x",
    "exch": "y",
}
"""What an atomic operation makes of the number that is there, x, and the one that is given, y."""

ATOMIC = ("f16", "bf16", "f32", "f64", "i16", "i32", "i64")


def _bits(element: str) -> int:
    if element not in ATOMIC:
        raise Refused(f"atomic operations on {element} have no form on this device")
    return BITS[element]


def _load(bits: int) -> str:
    return "triton_load_u16" if bits == 16 else f"otr_atomic_load_u{bits}"


def _exchange(bits: int) -> str:
    return "triton_cas_u16" if bits == 16 else f"otr_atomic_cas_u{bits}"


_ADDED = ("i32", "i64", "f32", "f64")
"""Elements for which the dialect has an atomic addition."""


def atomic(kind: str, element: str) -> tuple[str, str, dict[str, str]]:
    """An atomic operation that takes a pointer and a number and gives the number before: its name, what its pointer leads to,
    and the texts for it."""
    bits = _bits(element)
    if kind in ("add", "fadd") and element in _ADDED:
        return f"otr_atomic_add_{element}", element, {}
    if kind not in _JOINED:
        raise Refused(f"the atomic operation {kind} has no form on this device")
    name, unsigned, number = f"triton_{kind}_{element}", f"u{bits}", register(element)
    made = to_bits(element, f"({number})({_JOINED[kind].format(u=unsigned)})")
    text = f"""
OTR_FUNCTION {number} {name}(OTR_GLOBAL {unsigned}* p, {number} y) {{
  {unsigned} old = {_load(bits)}(p);
  for (;;) {{
    {number} x = {of_bits(element, "old")};
    {unsigned} seen = {_exchange(bits)}(p, old, ({unsigned}){made});
    if (seen == old) return x;
    old = seen;
  }}
}}
"""
    return name, unsigned, {**_texts(bits), name: text}


def compare_and_swap(element: str) -> tuple[str, str, dict[str, str]]:
    """The same for an exchange that takes the expected number too."""
    bits = _bits(element)
    name, number = f"triton_cas_{element}", register(element)
    seen = f"{_exchange(bits)}(p, (u{bits}){to_bits(element, 'x')}, (u{bits}){to_bits(element, 'y')})"
    text = f"""
OTR_FUNCTION {number} {name}(OTR_GLOBAL u{bits}* p, {number} x, {number} y) {{
  return {of_bits(element, seen)};
}}
"""
    return name, f"u{bits}", {**_texts(bits), name: text}


def atomic_load(element: str) -> tuple[str, str, dict[str, str]]:
    """The same for a load."""
    bits = _bits(element)
    name, number = f"triton_load_{element}", register(element)
    text = f"""
OTR_FUNCTION {number} {name}(OTR_GLOBAL u{bits}* p) {{
  return {of_bits(element, f"{_load(bits)}(p)")};
}}
"""
    return name, f"u{bits}", {**_texts(bits), name: text}


def poll(element: str) -> tuple[str, str, dict[str, str]]:
    """The same for a wait until a number is there, which gives up after so many looks; never if that is negative."""
    load, unsigned, texts = atomic_load(element)
    name = f"triton_poll_{element}"
    text = f"""
OTR_FUNCTION i32 {name}(OTR_GLOBAL {unsigned}* p, {register(element)} expected, i64 looks) {{
  while ({load}(p) != expected) {{
    if (looks >= 0 && looks-- == 0) return 0;
  }}
  return 1;
}}
"""
    return name, unsigned, {**texts, name: text}


def _texts(bits: int) -> dict[str, str]:
    return {"triton_cas_u16": _WORD} if bits == 16 else {}


def product(element: str, operand: str, rows: int, columns: int, depth: int) -> tuple[str, dict[str, str]]:
    """The function c += a b for arrays of constant sizes."""
    name = f"triton_product_{operand}_{element}_{rows}_{columns}_{depth}"
    if operand == element and element != "i32" and rows % 4 == 0 and columns % 16 == 0:
        body = f"TRITON_PRODUCT({name}, {element}, {rows}, {columns}, {depth})"
        return name, {"TRITON_PRODUCT": _PRODUCT, name: body}
    body = f"TRITON_SMALL_PRODUCT({name}, {operand}, {element}, {rows}, {columns}, {depth})"
    return name, {"TRITON_SMALL_PRODUCT": _SMALL_PRODUCT, name: body}


_PRODUCT = r"""
/* 4 rows of 16 sums stay in registers. */
#define TRITON_PRODUCT(name, T, M, N, K) \
  OTR_FUSED void name(const T* a, const T* b, T* c) { \
    for (i32 i = 0; i < M; i += 4) { \
      for (i32 j = 0; j < N; j += 16) { \
        OTR_VECTOR(T, 8) s[4][2]; \
        OTR_UNROLL for (i32 r = 0; r < 4; r++) { \
          s[r][0] = OTR_VECTOR_LOAD(T, 8, c + (i + r) * N + j); \
          s[r][1] = OTR_VECTOR_LOAD(T, 8, c + (i + r) * N + j + 8); \
        } \
        for (i32 k = 0; k < K; k++) { \
          const OTR_VECTOR(T, 8) x = OTR_VECTOR_LOAD(T, 8, b + k * N + j), y = OTR_VECTOR_LOAD(T, 8, b + k * N + j + 8); \
          OTR_UNROLL for (i32 r = 0; r < 4; r++) { \
            const T q = a[(i + r) * K + k]; \
            s[r][0] = OTR_VECTOR_FMA(T, 8, q, x, s[r][0]); \
            s[r][1] = OTR_VECTOR_FMA(T, 8, q, y, s[r][1]); \
          } \
        } \
        OTR_UNROLL for (i32 r = 0; r < 4; r++) { \
          OTR_VECTOR_STORE(T, 8, c + (i + r) * N + j, s[r][0]); \
          OTR_VECTOR_STORE(T, 8, c + (i + r) * N + j + 8, s[r][1]); \
        } \
      } \
    } \
  }
"""

SCALED = r"""
/* A scale is a power of 2, or NaN. */
OTR_FUNCTION f32 triton_of_e8m0(u8 x) {
  return x == 255 ? OTR_NAN_F32 : otr_of_bits_f32(x == 0 ? 0x00400000u : (u32)x << 23);
}
/* A number of 4 bits in the low (0) or high (1) half of a byte: a sign, 2 bits of an exponent, and one behind the point. */
OTR_FUNCTION f32 triton_of_e2m1(u8 pair, i32 half_) {
  u32 bits = ((u32)pair >> (4 * half_)) & 15u, rest = bits & 7u;
  f32 x = rest < 2u ? (f32)rest * 0.5f : otr_of_bits_f32((rest << 22) + (126u << 23));
  return bits & 8u ? -x : x;
}
"""
"""What products of scaled numbers need."""

_SMALL_PRODUCT = r"""
#define TRITON_SMALL_PRODUCT(name, A, T, M, N, K) \
  OTR_FUSED void name(const A* a, const A* b, T* c) { \
    for (i32 i = 0; i < M; i++) { \
      for (i32 k = 0; k < K; k++) { \
        const T q = (T)a[i * K + k]; \
        OTR_INDEPENDENT for (i32 j = 0; j < N; j++) c[i * N + j] += q * (T)b[k * N + j]; \
      } \
    } \
  }
"""
