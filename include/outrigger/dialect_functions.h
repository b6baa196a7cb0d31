/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/dialect_functions.h: functions that are written in the macros of dialect.h, which stands in front of it.
 * They are the same on every device.
 */
#ifndef OUTRIGGER_DIALECT_FUNCTIONS_H
#define OUTRIGGER_DIALECT_FUNCTIONS_H

/* ---- Numbers ------------------------------------------------------------------------------- */

#define OTR_INTEGERS(T, U) \
  OTR_FUNCTION T otr_add_##T(T x, T y) { return (T)((U)x + (U)y); } \
  OTR_FUNCTION T otr_sub_##T(T x, T y) { return (T)((U)x - (U)y); } \
  OTR_FUNCTION T otr_mul_##T(T x, T y) { return (T)((U)x * (U)y); } \
  OTR_FUNCTION T otr_neg_##T(T x) { return (T)((U)0 - (U)x); } \
  OTR_FUNCTION T otr_abs_##T(T x) { return x < 0 ? otr_neg_##T(x) : x; } \
  OTR_FUNCTION T otr_fma_##T(T x, T y, T z) { return (T)((U)x * (U)y + (U)z); } \
  OTR_FUNCTION i32 otr_isnan_##T(T x) { return x != x; } \
  OTR_FUNCTION i32 otr_popcount_##T(T x) { return otr_popcount_##U((U)x); } \
  OTR_FUNCTION i32 otr_clz_##T(T x) { return otr_clz_##U((U)x); } \
  OTR_FUNCTION T otr_mul_high_##T(T x, T y) { \
    return (T)(otr_mul_high_##U((U)x, (U)y) - (x < 0 ? (U)y : 0) - (y < 0 ? (U)x : 0)); \
  } \
  OTR_FUNCTION T otr_div_trunc_##T(T x, T y) { return y == 0 ? 0 : y == -1 ? otr_neg_##T(x) : x / y; } \
  OTR_FUNCTION T otr_fmod_##T(T x, T y) { return y == 0 || y == -1 ? 0 : x % y; } \
  OTR_FUNCTION T otr_remainder_##T(T x, T y) { \
    T rest = otr_fmod_##T(x, y); \
    return rest != 0 && ((rest < 0) != (y < 0)) ? rest + y : rest; \
  } \
  OTR_FUNCTION T otr_div_floor_##T(T x, T y) { \
    T rest = otr_fmod_##T(x, y), quotient = otr_div_trunc_##T(x, y); \
    return rest != 0 && ((rest < 0) != (y < 0)) ? quotient - 1 : quotient; \
  } \
  OTR_FUNCTION T otr_pow_##T(T x, T y) { \
    T result = 1; \
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0; \
    while (y) { \
      if (y & 1) result = otr_mul_##T(result, x); \
      x = otr_mul_##T(x, x); \
      y >>= 1; \
    } \
    return result; \
  }
OTR_INTEGERS(i32, u32)
OTR_INTEGERS(i64, u64)

/* NaN wins, on either side. */
#define OTR_ORDERED(T) \
  OTR_FUNCTION T otr_max_##T(T x, T y) { return x != x || x > y ? x : y; } \
  OTR_FUNCTION T otr_min_##T(T x, T y) { return x != x || x < y ? x : y; }
OTR_ORDERED(f32)
OTR_ORDERED(i32)
OTR_ORDERED(i64)
OTR_ORDERED(u32)
OTR_ORDERED(u64)
#if OTR_HAS_F64
OTR_ORDERED(f64)
#endif

/* Where a thread runs a group, exp and exp2 are polynomials, so that a compiler makes vectors of them: few do of a library's.
 * They are right within an ulp, for denormal results too. */
#if OTR_GROUP_SIZE == 1
/* 2^n exp(r) for the whole number n that is `near` less 12582912: so large a sum is rounded to whole numbers, which its low bits
 * are. */
OTR_FUNCTION f32 otr_scaled_exp_f32(f32 near, f32 r) {
  f32 p = otr_fma_f32(1.98914799e-4f, r, 1.39340904e-3f);
  p = otr_fma_f32(p, r, 8.33331048e-3f);
  p = otr_fma_f32(p, r, 4.16664609e-2f);
  p = otr_fma_f32(p, r, 1.66666667e-1f);
  p = otr_fma_f32(p, r, 0.5f);
  p = otr_fma_f32(p, r * r, r) + 1.0f;
  /* In two parts, since 2^n itself may be too small or too large. */
  i32 power = (i32)(otr_bits_f32(near) - otr_bits_f32(12582912.0f)), part = power >> 1;
  p *= otr_of_bits_f32((u32)(part + 127) << 23);
  return p * otr_of_bits_f32((u32)(power - part + 127) << 23);
}
OTR_FUNCTION f32 otr_exp_f32(f32 x) {
  f32 near, n;
  /* Beyond these all results are 0 or infinite. NaN stays. */
  x = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
  near = otr_fma_f32(x, 1.44269504f, 12582912.0f);
  n = near - 12582912.0f;
  return otr_scaled_exp_f32(near, otr_fma_f32(n, 2.12194440e-4f, otr_fma_f32(n, -0.693359375f, x)));
}
OTR_FUNCTION f32 otr_exp2_f32(f32 x) {
  x = x > 129.0f ? 129.0f : x < -151.0f ? -151.0f : x;
  f32 near = x + 12582912.0f;
  return otr_scaled_exp_f32(near, (x - (near - 12582912.0f)) * 0.693147182f);
}
#else
OTR_MATH1(f32, exp, exp, exp)
OTR_MATH1(f32, exp2, exp2, exp2)
#endif

/* The error function within 5 ulp, as one quotient: it is 1 from 3.8325 on. */
OTR_FUNCTION f32 otr_erf_f32(f32 x) {
  const f32 end = 3.8325f;
  f32 a = x > end ? end : x < -end ? -end : x, square = a * a, p, q, y;
  p = otr_fma_f32(2.12313694e-6f, square, 2.85943563e-4f);
  p = otr_fma_f32(p, square, 3.65275424e-3f);
  p = otr_fma_f32(p, square, 5.24185374e-2f);
  p = otr_fma_f32(p, square, 1.87308297e-1f);
  p = otr_fma_f32(p, square, 1.12837911f);
  q = otr_fma_f32(3.88983462e-5f, square, 1.14170788e-3f);
  q = otr_fma_f32(q, square, 1.47424992e-2f);
  q = otr_fma_f32(q, square, 1.12900496e-1f);
  q = otr_fma_f32(q, square, 4.9933055e-1f);
  q = otr_fma_f32(q, square, 1.0f);
  y = a * p / q;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}
#if OTR_HAS_F64
OTR_MATH1(f64, exp, exp, exp)
OTR_MATH1(f64, exp2, exp2, exp2)
OTR_MATH1(f64, erf, erf, erf)
#endif

/* ---- Random numbers ------------------------------------------------------------------------ */

OTR_FUNCTION void otr_philox(u64 key, u64 counter, u32* words) {
  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
  for (i32 round_ = 0; round_ < 10; round_++) {
    u32 high0 = otr_mul_high_u32(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    u32 high1 = otr_mul_high_u32(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}
/* The highest bits of a word as a number in [0, 1). */
OTR_FUNCTION f32 otr_fraction_f32(u32 word, i32 digits) {
  return (f32)(word >> (32 - digits)) * otr_of_bits_f32((u32)(127 - digits) << 23);
}
OTR_FUNCTION f32 otr_uniform_f32(u64 seed, u64 offset, u64 position) {
  u32 words[4];
  otr_philox(seed, offset + position / 4, words);
  return otr_fraction_f32(words[position & 3], 24);
}

/* ---- Folds of a group ---------------------------------------------------------------------- */

#if OTR_GROUP_SIZE == 1
#define OTR_FOLD(T, name, step) \
  OTR_FUNCTION T otr_group_##name##_##T(OTR_ITEM T value, OTR_LOCAL T* scratch) { \
    (void)scratch; \
    OTR_UNUSED_ITEM; \
    return value; \
  }
#else
#define OTR_FOLD(T, name, step) \
  OTR_FUNCTION T otr_group_##name##_##T(OTR_ITEM T value, OTR_LOCAL T* scratch) { \
    i32 lane = OTR_LANE; \
    scratch[lane] = value; \
    OTR_BARRIER(); \
    for (i32 width = OTR_GROUP_SIZE / 2; width > 0; width >>= 1) { \
      if (lane < width) scratch[lane] = step(scratch[lane], scratch[lane + width]); \
      OTR_BARRIER(); \
    } \
    T result = scratch[0]; \
    OTR_BARRIER(); \
    return result; \
  }
#endif
#if OTR_C || OTR_TASKS
#define OTR_UNUSED_ITEM (void)otr_place
#else
#define OTR_UNUSED_ITEM
#endif
#define OTR_FOLDS(T) \
  OTR_FOLD(T, sum, otr_add_##T) \
  OTR_FOLD(T, prod, otr_mul_##T) \
  OTR_FOLD(T, max, otr_max_##T) \
  OTR_FOLD(T, min, otr_min_##T)
OTR_FOLDS(f32)
OTR_FOLDS(i32)
OTR_FOLDS(i64)
#if OTR_HAS_F64
OTR_FOLDS(f64)
#endif

/* ---- Atomics ------------------------------------------------------------------------------- */

/* An atomic that is made of others: what `step` makes of the number that is there and another one takes its place, unless a third
 * one came between. U is an unsigned type of the same size, whose bits `of` turns into a number, and `bits` back. */
#define OTR_ATOMIC_LOOP(name, memory, register_, U, of, bits, step) \
  OTR_FUNCTION register_ name(OTR_GLOBAL memory* p, register_ v) { \
    OTR_GLOBAL U* place = (OTR_GLOBAL U*)p; \
    U old = otr_atomic_load_##U(place), seen; \
    for (;;) { \
      seen = otr_atomic_cas_##U(place, old, (U)bits(step(of(old), v))); \
      if (seen == old) return of(old); \
      old = seen; \
    } \
  }

OTR_ATOMIC_ACCESS(u8)
OTR_ATOMIC_ACCESS(u16)
OTR_ATOMIC_ACCESS(u32)
OTR_ATOMIC_ACCESS(i32)
OTR_ATOMIC_ACCESS(f32)
#if OTR_HAS_ATOMIC64
OTR_ATOMIC_ACCESS(u64)
OTR_ATOMIC_ACCESS(i64)
#if OTR_HAS_F64
OTR_ATOMIC_ACCESS(f64)
#endif
#endif

/* Less than 32 bits are exchanged in the word that holds them. */
#ifndef OTR_NARROW_CAS
#define OTR_NARROW_CAS(T) \
  OTR_FUNCTION T otr_atomic_cas_##T(OTR_GLOBAL T* p, T expected, T v) { \
    u64 address_ = (u64)p; \
    OTR_GLOBAL u32* word_ = (OTR_GLOBAL u32*)(address_ & ~(u64)3); \
    u32 shift_ = (u32)(address_ & 3) * 8, mask_ = (u32)(T)-1 << shift_, old = otr_atomic_load_u32(word_), seen; \
    while ((T)(old >> shift_) == expected) { \
      seen = otr_atomic_cas_u32(word_, old, (old & ~mask_) | ((u32)v << shift_)); \
      if (seen == old) break; \
      old = seen; \
    } \
    return (T)(old >> shift_); \
  }
#endif
OTR_NARROW_CAS(u8)
OTR_NARROW_CAS(u16)

/* Numbers that are other ones' bits. */
#define OTR_ATOMIC_BITS(T, U, of, bits) \
  OTR_FUNCTION T otr_atomic_exchange_##T(OTR_GLOBAL T* p, T v) { \
    return of(otr_atomic_exchange_##U((OTR_GLOBAL U*)p, bits(v))); \
  } \
  OTR_FUNCTION T otr_atomic_cas_##T(OTR_GLOBAL T* p, T expected, T v) { \
    return of(otr_atomic_cas_##U((OTR_GLOBAL U*)p, bits(expected), bits(v))); \
  }
#define OTR_ATOMIC_SIGNED(name, T, U, of) \
  OTR_FUNCTION T name(OTR_GLOBAL T* p, T v) { return (T)of((OTR_GLOBAL U*)p, (U)v); }
#define OTR_AND(x, y) ((x) & (y))
#define OTR_OR(x, y) ((x) | (y))
#define OTR_XOR(x, y) ((x) ^ (y))
#define OTR_PLUS(x, y) ((x) + (y))

/* A device has these for integers, or they are made of others. */
#ifndef OTR_ATOMIC32
#define OTR_ATOMIC32(name, T, opencl, cuda, of, step) OTR_ATOMIC_LOOP(name, T, T, u32, of, (u32), step)
#endif
#ifndef OTR_ATOMIC64
#define OTR_ATOMIC64(name, T, cuda, of, step) OTR_ATOMIC_LOOP(name, T, T, u64, of, (u64), step)
#endif
OTR_ATOMIC32(otr_atomic_and_u32, u32, atomic_and, atomicAnd, (u32), OTR_AND)
OTR_ATOMIC32(otr_atomic_or_u32, u32, atomic_or, atomicOr, (u32), OTR_OR)
OTR_ATOMIC32(otr_atomic_xor_u32, u32, atomic_xor, atomicXor, (u32), OTR_XOR)
OTR_ATOMIC32(otr_atomic_max_u32, u32, atomic_max, atomicMax, (u32), otr_max_u32)
OTR_ATOMIC32(otr_atomic_min_u32, u32, atomic_min, atomicMin, (u32), otr_min_u32)
OTR_ATOMIC32(otr_atomic_max_i32, i32, atomic_max, atomicMax, (i32), otr_max_i32)
OTR_ATOMIC32(otr_atomic_min_i32, i32, atomic_min, atomicMin, (i32), otr_min_i32)
OTR_ATOMIC_BITS(i32, u32, (i32), (u32))
OTR_ATOMIC_SIGNED(otr_atomic_add_i32, i32, u32, otr_atomic_add_u32)
OTR_ATOMIC_SIGNED(otr_atomic_and_i32, i32, u32, otr_atomic_and_u32)
OTR_ATOMIC_SIGNED(otr_atomic_or_i32, i32, u32, otr_atomic_or_u32)
OTR_ATOMIC_SIGNED(otr_atomic_xor_i32, i32, u32, otr_atomic_xor_u32)
OTR_ATOMIC_BITS(f32, u32, otr_of_bits_f32, otr_bits_f32)
OTR_ATOMIC_LOOP(otr_atomic_max_f32, f32, f32, u32, otr_of_bits_f32, otr_bits_f32, otr_max_f32)
OTR_ATOMIC_LOOP(otr_atomic_min_f32, f32, f32, u32, otr_of_bits_f32, otr_bits_f32, otr_min_f32)
#if OTR_CUDA
OTR_ATOMIC(otr_atomic_add_f32, f32, atomicAdd)
#else
OTR_ATOMIC_LOOP(otr_atomic_add_f32, f32, f32, u32, otr_of_bits_f32, otr_bits_f32, OTR_PLUS)
#endif
#if OTR_HAS_ATOMIC64
OTR_ATOMIC64(otr_atomic_and_u64, u64, atomicAnd, (u64), OTR_AND)
OTR_ATOMIC64(otr_atomic_or_u64, u64, atomicOr, (u64), OTR_OR)
OTR_ATOMIC64(otr_atomic_xor_u64, u64, atomicXor, (u64), OTR_XOR)
OTR_ATOMIC64(otr_atomic_max_u64, u64, atomicMax, (u64), otr_max_u64)
OTR_ATOMIC64(otr_atomic_min_u64, u64, atomicMin, (u64), otr_min_u64)
OTR_ATOMIC64(otr_atomic_max_i64, i64, atomicMax, (i64), otr_max_i64)
OTR_ATOMIC64(otr_atomic_min_i64, i64, atomicMin, (i64), otr_min_i64)
OTR_ATOMIC_BITS(i64, u64, (i64), (u64))
OTR_ATOMIC_SIGNED(otr_atomic_add_i64, i64, u64, otr_atomic_add_u64)
OTR_ATOMIC_SIGNED(otr_atomic_and_i64, i64, u64, otr_atomic_and_u64)
OTR_ATOMIC_SIGNED(otr_atomic_or_i64, i64, u64, otr_atomic_or_u64)
OTR_ATOMIC_SIGNED(otr_atomic_xor_i64, i64, u64, otr_atomic_xor_u64)
#if OTR_HAS_F64
OTR_ATOMIC_BITS(f64, u64, otr_of_bits_f64, otr_bits_f64)
OTR_ATOMIC_LOOP(otr_atomic_max_f64, f64, f64, u64, otr_of_bits_f64, otr_bits_f64, otr_max_f64)
OTR_ATOMIC_LOOP(otr_atomic_min_f64, f64, f64, u64, otr_of_bits_f64, otr_bits_f64, otr_min_f64)
#if OTR_CUDA
OTR_ATOMIC(otr_atomic_add_f64, f64, atomicAdd)
#else
OTR_ATOMIC_LOOP(otr_atomic_add_f64, f64, f64, u64, otr_of_bits_f64, otr_bits_f64, OTR_PLUS)
#endif
#endif
#endif

/* Numbers of a register type, in memory of less than 32 bits. */
#define OTR_IS_TRUE(x) ((x) != 0)
OTR_ATOMIC_LOOP(otr_atomic_add_f16, u16, f32, u16, otr_of_f16, otr_to_f16, OTR_PLUS)
OTR_ATOMIC_LOOP(otr_atomic_add_bf16, u16, f32, u16, otr_of_bf16, otr_to_bf16, OTR_PLUS)
OTR_ATOMIC_LOOP(otr_atomic_add_u8, u8, i32, u8, (i32), (u8), OTR_PLUS)
OTR_ATOMIC_LOOP(otr_atomic_add_i8, i8, i32, u8, (i32)(i8), (u8), OTR_PLUS)
OTR_ATOMIC_LOOP(otr_atomic_add_u16, u16, i32, u16, (i32), (u16), OTR_PLUS)
OTR_ATOMIC_LOOP(otr_atomic_add_i16, i16, i32, u16, (i32)(i16), (u16), OTR_PLUS)
OTR_ATOMIC_LOOP(otr_atomic_add_b8, u8, i32, u8, (i32), OTR_IS_TRUE, OTR_PLUS)

#endif /* OUTRIGGER_DIALECT_FUNCTIONS_H */
