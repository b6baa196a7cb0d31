/* Every function of the dialect, on numbers that a test gives and judges: it reads the names of the rows here. All kernels
 * have three rows of words.
 */
typedef struct { i64 count; } arguments_t;

#define EACH for (i64 at = (i64)OTR_GROUP_ID(0) * OTR_GROUP_SIZE + OTR_LANE; at < args.count; at += (i64)OTR_GROUP_COUNT(0) * OTR_GROUP_SIZE)
#define ROW(value) { to[row * args.count + at] = (value); row++; }

#define NUMBERS(T) \
  ROW(otr_exp_##T(x)) ROW(otr_exp2_##T(x)) ROW(otr_expm1_##T(x)) ROW(otr_log_##T(x)) ROW(otr_log1p_##T(x)) \
  ROW(otr_log2_##T(x)) ROW(otr_log10_##T(x)) ROW(otr_sqrt_##T(x)) ROW(otr_rsqrt_##T(x)) ROW(otr_cbrt_##T(x)) \
  ROW(otr_pow_##T(x, y)) ROW(otr_hypot_##T(x, y)) ROW(otr_sin_##T(x)) ROW(otr_cos_##T(x)) ROW(otr_tan_##T(x)) \
  ROW(otr_asin_##T(x)) ROW(otr_acos_##T(x)) ROW(otr_atan_##T(x)) ROW(otr_atan2_##T(x, y)) ROW(otr_sinh_##T(x)) \
  ROW(otr_cosh_##T(x)) ROW(otr_tanh_##T(x)) ROW(otr_asinh_##T(x)) ROW(otr_acosh_##T(x)) ROW(otr_atanh_##T(x)) \
  ROW(otr_erf_##T(x)) ROW(otr_erfc_##T(x)) ROW(otr_lgamma_##T(x)) ROW(otr_tgamma_##T(x)) ROW(otr_floor_##T(x)) \
  ROW(otr_ceil_##T(x)) ROW(otr_trunc_##T(x)) ROW(otr_round_##T(x)) ROW(otr_round_away_##T(x)) ROW(otr_fmod_##T(x, y)) \
  ROW(otr_ieee_remainder_##T(x, y)) ROW(otr_remainder_##T(x, y)) ROW(otr_logb_##T(x)) ROW(otr_nextafter_##T(x, y)) \
  ROW(otr_fdim_##T(x, y)) ROW(otr_copysign_##T(x, y)) ROW(otr_abs_##T(x)) ROW(otr_max_##T(x, y)) ROW(otr_min_##T(x, y)) \
  ROW(otr_ldexp_##T(x, power)) ROW(otr_frexp_##T(x, &found)) ROW((T)found)
#define NUMBERS_KERNEL(T) \
  OTR_KERNEL(numbers_##T)(OTR_ITEM OTR_GLOBAL const T* xs, OTR_GLOBAL const T* ys, OTR_GLOBAL T* to, \
      const arguments_t args) { \
    EACH { \
      const T x = xs[at], y = ys[at]; \
      const i32 power = OTR_CONVERT(T, i32, otr_max_##T(-400, otr_min_##T(400, y))); \
      i32 found = 7; \
      i64 row = 0; \
      NUMBERS(T) \
    } \
  }
NUMBERS_KERNEL(f32)
#if OTR_HAS_F64
NUMBERS_KERNEL(f64)
#endif

OTR_KERNEL(integers)(OTR_ITEM OTR_GLOBAL const u64* xs, OTR_GLOBAL const u64* ys, OTR_GLOBAL u64* to, const arguments_t args) {
  EACH {
    const u64 x = xs[at], y = ys[at];
    i64 row = 0;
    ROW(otr_mul_high_u32((u32)x, (u32)y))
    ROW((u64)otr_mul_high_i32((i32)x, (i32)y))
    ROW(otr_mul_high_u64(x, y))
    ROW((u64)otr_mul_high_i64((i64)x, (i64)y))
    ROW((u64)otr_popcount_u32((u32)x))
    ROW((u64)otr_popcount_i32((i32)x))
    ROW((u64)otr_popcount_u64(x))
    ROW((u64)otr_popcount_i64((i64)x))
    ROW((u64)otr_clz_u32((u32)x))
    ROW((u64)otr_clz_i32((i32)x))
    ROW((u64)otr_clz_u64(x))
    ROW((u64)otr_clz_i64((i64)x))
  }
}

/* ---- Atomics ---- Each row has a cell of its own, a word of 64 bits, and notes what each item has seen there. Types of less
 * than 32 bits lie in the middle of the cell. */
#define CELL(T) ((OTR_GLOBAL T*)(cells + row))
#define INSIDE(T, at) ((OTR_GLOBAL T*)(cells + row) + (at))
#define COUNTED(T) ROW((u64)(i64)otr_atomic_add_##T(CELL(T), (T)1))
#define CHANGED(T) \
  ROW((u64)(i64)otr_atomic_exchange_##T(CELL(T), (T)(at + 1))) \
  ROW((u64)(i64)otr_atomic_cas_##T(CELL(T), (T)0, (T)(at + 1)))
#define FOUND(T) \
  ROW((u64)(i64)otr_atomic_max_##T(CELL(T), (T)(at * 37 % args.count - 100))) \
  ROW((u64)(i64)otr_atomic_min_##T(CELL(T), (T)(at * 37 % args.count - 100)))
#define BITS(T) \
  ROW((u64)otr_atomic_or_##T(CELL(T), (T)1 << at % 31)) \
  ROW((u64)otr_atomic_and_##T(CELL(T), ~((T)1 << at % 31))) \
  ROW((u64)otr_atomic_xor_##T(CELL(T), (T)(at * 0x9e3779b9)))
#define NOTED(T) \
  otr_atomic_store_##T((OTR_GLOBAL T*)(own + at), (T)(at % 200)); \
  ROW((u64)(i64)otr_atomic_load_##T((OTR_GLOBAL T*)(own + at)))
OTR_KERNEL(atomics)(OTR_ITEM OTR_GLOBAL u64* cells, OTR_GLOBAL u64* own, OTR_GLOBAL u64* to, const arguments_t args) {
  EACH {
    i64 row = 0;
    COUNTED(i32) COUNTED(u32) COUNTED(f32)
    CHANGED(i32) CHANGED(u32) CHANGED(f32)
    FOUND(i32) FOUND(u32) FOUND(f32)
    BITS(i32) BITS(u32)
    ROW((u64)(i64)otr_atomic_add_f16(INSIDE(u16, 1), 1))
    ROW((u64)(i64)otr_atomic_add_bf16(INSIDE(u16, 2), 1))
    ROW((u64)(i64)otr_atomic_add_u8(INSIDE(u8, 3), 1))
    ROW((u64)(i64)otr_atomic_add_i8(INSIDE(i8, 6), 1))
    ROW((u64)(i64)otr_atomic_add_u16(INSIDE(u16, 3), 1))
    ROW((u64)(i64)otr_atomic_add_i16(INSIDE(i16, 1), 1))
    ROW((u64)(i64)otr_atomic_add_b8(INSIDE(u8, 5), 1))
    ROW(otr_atomic_cas_u8(INSIDE(u8, 3), 0, (u8)(at + 1)))
    ROW(otr_atomic_cas_u16(INSIDE(u16, 1), 0, (u16)(at + 1)))
    NOTED(u8) NOTED(u16) NOTED(i32) NOTED(u32) NOTED(f32)
    /* NaN stays where it is, whoever comes later. The cells of the others are -0 and NaN: bits are compared. */
    ROW(otr_bits_f32(otr_atomic_max_f32(CELL(f32), at == 3 ? OTR_NAN_F32 : (f32)at)))
    ROW(otr_bits_f32(otr_atomic_cas_f32(CELL(f32), 0.0f, 1.0f)))
    ROW(otr_bits_f32(otr_atomic_cas_f32(CELL(f32), OTR_NAN_F32, 1.0f)))
  }
}
#if OTR_HAS_ATOMIC64 && OTR_HAS_F64
OTR_KERNEL(wide_atomics)(OTR_ITEM OTR_GLOBAL u64* cells, OTR_GLOBAL u64* own, OTR_GLOBAL u64* to, const arguments_t args) {
  EACH {
    i64 row = 0;
    COUNTED(i64) COUNTED(u64) COUNTED(f64)
    CHANGED(i64) CHANGED(u64) CHANGED(f64)
    FOUND(i64) FOUND(u64) FOUND(f64)
    BITS(i64) BITS(u64)
    NOTED(i64) NOTED(u64) NOTED(f64)
  }
}
#endif

/* Groups that lock each other out, and hand messages on: each waits for the one that began before it. */
OTR_KERNEL(ordered)(OTR_ITEM OTR_GLOBAL u64* cells, OTR_GLOBAL u64* own, OTR_GLOBAL u64* to, const arguments_t args) {
  if (OTR_LANE == 0) {
    OTR_GLOBAL u32* words = (OTR_GLOBAL u32*)cells;
    OTR_GLOBAL u32* said = (OTR_GLOBAL u32*)to;
    const u32 ticket = otr_atomic_add_u32(words, 1);
    for (i32 turn = 0; turn < 50; turn++) {
      while (otr_atomic_cas_u32(words + 1, 0, 1) != 0) {
      }
      OTR_ACQUIRE();
      for (i64 k = 0; k < 8; k++) own[k] += ticket;
      OTR_RELEASE();
      otr_atomic_store_u32(words + 1, 0);
    }
    if (ticket > 0) {
      while (otr_atomic_load_u32(said + ticket - 1) == 0) {
      }
      OTR_ACQUIRE();
      own[8 + ticket] = own[8 + ticket - 1] + ticket;
    }
    OTR_RELEASE();
    otr_atomic_store_u32(said + ticket, 1);
  }
  (void)args;
}
