/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/dialect_functions.h: functions that are written in the macros of dialect.h, which stands in front of it.
 * They are the same on every device.
 */
#ifndef OUTRIGGER_DIALECT_FUNCTIONS_H
#define OUTRIGGER_DIALECT_FUNCTIONS_H

/* Where a thread runs a group, exp is a polynomial, so that a compiler makes vectors of it: few do of a library's. It is
 * right within an ulp, for denormal results too. */
#if OTR_GROUP_SIZE == 1
OTR_FUNCTION f32 otr_exp_f32(f32 x) {
  f32 near, n, r, p;
  /* Beyond these all results are 0 or infinite. NaN stays. */
  x = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
  /* exp(x) is 2^n exp(r). The sum is so large that it is rounded to a whole number, which its low bits are. */
  near = otr_fma_f32(x, 1.44269504f, 12582912.0f);
  n = near - 12582912.0f;
  r = otr_fma_f32(n, 2.12194440e-4f, otr_fma_f32(n, -0.693359375f, x));
  p = otr_fma_f32(1.98914799e-4f, r, 1.39340904e-3f);
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
#else
OTR_MATH1(f32, exp, exp, exp)
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

#endif /* OUTRIGGER_DIALECT_FUNCTIONS_H */
