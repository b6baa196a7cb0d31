"""Functions in the dialect that kernels of Triton use besides it."""

from __future__ import annotations

BASIC = r"""
#if defined(__AVX512F__) && !defined(__clang__)
/* Of vectors of 64 bytes GCC uses a half by itself. */
#pragma GCC target("prefer-vector-width=512")
#endif
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

WITHIN = r"""
/* Whether some bytes lie in memory that begins and ends so far from an address. */
OTR_FUNCTION i32 triton_within(const OTR_GLOBAL void* at, i64 size, const OTR_GLOBAL void* start, i64 first, i64 behind) {
  const i64 from = (const OTR_GLOBAL u8*)at - (const OTR_GLOBAL u8*)start;
  return from >= first && from + size <= behind;
}
OTR_FUNCTION i32 triton_looked(i32 holds, OTR_GLOBAL i32* otr_failed) {
  OTR_CHECK(holds, OTR_OUT_OF_RANGE);
  return holds;
}
"""


LARGE = r"""
/* A thread runs one program at a time. */
#if OTR_C && defined(__cplusplus)
#define TRITON_LARGE static thread_local
#elif OTR_C
#define TRITON_LARGE static _Thread_local
#else
#define TRITON_LARGE
#endif
"""
"""The place of arrays that do not go onto a stack."""


def poll(name: str, number: str, pointee: str, load: str) -> str:
    """A wait until a number is there, which gives up after so many looks, or never if that is negative."""
    return f"""
OTR_FUNCTION i32 {name}(OTR_GLOBAL {pointee}* p, {number} expected, i64 looks) {{
  while ({load} != expected) {{
    if (looks >= 0 && looks-- == 0) return 0;
  }}
  return 1;
}}
"""


_WIDTHS = {"f32": 8, "f64": 4}
"""Numbers of a vector of 32 bytes."""


def product(element: str, operand: str, rows: int, columns: int, depth: int) -> tuple[str, dict[str, str]]:
    """The function c += a b for arrays of constant sizes."""
    name, width = f"triton_product_{operand}_{element}_{rows}_{columns}_{depth}", _WIDTHS.get(element, 0)
    if operand != element or not width or rows % 4 or columns % (2 * width):
        body = f"TRITON_SMALL_PRODUCT({name}, {operand}, {element}, {rows}, {columns}, {depth})"
        return name, {"TRITON_SMALL_PRODUCT": _SMALL_PRODUCT, name: body}
    body = f"TRITON_PRODUCT({name}, {element}, {width}, 4, {rows}, {columns}, {depth})"
    if columns % (4 * width) == 0:
        # A processor with AVX-512 has twice as many registers, too.
        wide = f"TRITON_PRODUCT({name}, {element}, {2 * width}, {4 if rows % 8 else 8}, {rows}, {columns}, {depth})"
        body = f"#if defined(__AVX512F__)\n{wide}\n#else\n{body}\n#endif"
    return name, {"TRITON_PRODUCT": _PRODUCT, name: body}


_PRODUCT = r"""
/* R rows of 2 vectors of W sums stay in registers. */
#define TRITON_PRODUCT(name, T, W, R, M, N, K) \
  OTR_FUSED void name(const T* a, const T* b, T* c) { \
    for (i32 i = 0; i < M; i += R) { \
      for (i32 j = 0; j < N; j += 2 * W) { \
        OTR_VECTOR(T, W) s[R][2]; \
        OTR_UNROLL for (i32 r = 0; r < R; r++) { \
          s[r][0] = OTR_VECTOR_LOAD(T, W, c + (i + r) * N + j); \
          s[r][1] = OTR_VECTOR_LOAD(T, W, c + (i + r) * N + j + W); \
        } \
        for (i32 k = 0; k < K; k++) { \
          const OTR_VECTOR(T, W) x = OTR_VECTOR_LOAD(T, W, b + k * N + j), y = OTR_VECTOR_LOAD(T, W, b + k * N + j + W); \
          OTR_UNROLL for (i32 r = 0; r < R; r++) { \
            const T q = a[(i + r) * K + k]; \
            s[r][0] = OTR_VECTOR_FMA(T, W, q, x, s[r][0]); \
            s[r][1] = OTR_VECTOR_FMA(T, W, q, y, s[r][1]); \
          } \
        } \
        OTR_UNROLL for (i32 r = 0; r < R; r++) { \
          OTR_VECTOR_STORE(T, W, c + (i + r) * N + j, s[r][0]); \
          OTR_VECTOR_STORE(T, W, c + (i + r) * N + j + W, s[r][1]); \
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
"""Functions for products of scaled numbers."""

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
