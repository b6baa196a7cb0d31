/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What programs of torch.compile use besides the dialect, written in its macros. It stands behind dialect.h and
 * dialect_functions.h, and in front of the kernels. It must never name a language: a vendor ports dialect.h alone.
 */

/* The widest floating-point type, for sizes that are real numbers. */
#if OTR_HAS_F64
#define OTR_WIDE f64
#define OTR_OF_WORD(word) otr_of_bits_f64((u64)(word))
#else
#define OTR_WIDE f32
#define OTR_OF_WORD(word) otr_of_bits_f32((u32)(word))
#endif

/* ---- Loops ----
 *
 * OTR_SPANS goes through positions from `first` to `last`, and OTR_EACH runs its block for those of a span, in lanes. Where a
 * group has many items, each is a lane, and a span is its position. Where a thread runs a group, a span is a row of
 * neighbours, which the compiler takes several at a time; OTR_COUNT says how many. What a lane keeps from block to block
 * is a slot: an array for so many lanes there, a variable elsewhere. */
#if OTR_GROUP_SIZE == 1
#define OTR_SPANS(first, last) for (i64 otr_at = (first), otr_count = 0; otr_at < (last); otr_at += otr_count)
#define OTR_COUNT(most) otr_count = (most)
#define OTR_EACH OTR_INDEPENDENT for (i64 otr_t = 0; otr_t < otr_count; otr_t++)
#define OTR_HERE(column) ((column) + otr_t)
#define OTR_SLOT(T, name, lanes) T name##_[lanes]
#define OTR_START(name, value, lanes) for (i64 otr_t = 0; otr_t < lanes; otr_t++) name##_[otr_t] = (value)
#define OTR_AT(name) name##_[otr_t]
#define OTR_SLOTS(name) name##_
#define OTR_SCRATCH(T, name)
#else
#define OTR_SPANS(first, last) for (i64 otr_at = (first) + OTR_LANE; otr_at < (last); otr_at += OTR_GROUP_SIZE)
#define OTR_COUNT(most)
#define OTR_EACH
#define OTR_HERE(column) (column)
#define OTR_SLOT(T, name, lanes) T name
#define OTR_START(name, value, lanes) name = (value)
#define OTR_AT(name) name
#define OTR_SLOTS(name) name
#define OTR_SCRATCH(T, name) OTR_SHARED(T, name, OTR_GROUP_SIZE);
#endif

/* The loop over neighbours in the end of a product, where an item has `most` sums of a row. A bound that is no constant would take
 * them out of the registers of an item. GCC takes a loop of few rounds apart before it makes vectors of it, unless told not to. */
#if OTR_C && defined(__GNUC__) && !defined(__clang__)
#define OTR_WHOLE _Pragma("GCC unroll 1")
#else
#define OTR_WHOLE
#endif
#if OTR_GROUP_SIZE == 1
#define OTR_PRODUCTS(most) OTR_INDEPENDENT OTR_WHOLE for (i32 otr_j = 0; otr_j < otr_left; otr_j++)
#else
#define OTR_PRODUCTS(most) OTR_UNROLL for (i32 otr_j = 0; otr_j < (most); otr_j++) if (otr_j < otr_left)
#endif

/* Positions go through tiles of rows and columns if rows of one operand are columns of another: a cache line of
 * either operand is used up while it is there. OTR_TILES is OTR_SPANS in that order, and `left` is the number of
 * columns of the tile that follow in the row. */
#define OTR_TILE_ROWS 64
typedef struct {
  i64 top, height, start, columns, width, row, column, left;
} otr_tile_t;
OTR_FUNCTION otr_tile_t otr_tiled(i64 at, i64 rows, i64 length, i64 columns) {
  otr_tile_t tile;
  i64 rest, done;
  tile.top = at / (OTR_TILE_ROWS * length) * OTR_TILE_ROWS;
  tile.height = otr_min_i64(OTR_TILE_ROWS, rows - tile.top);
  rest = at - tile.top * length;
  tile.start = rest / (tile.height * columns) * columns;
  tile.columns = columns;
  tile.width = otr_min_i64(columns, length - tile.start);
  rest -= tile.start * tile.height;
  done = rest % tile.width;
  tile.row = tile.top + rest / tile.width;
  tile.column = tile.start + done;
  tile.left = tile.width - done;
  return tile;
}
#if OTR_GROUP_SIZE == 1
/* The place behind a whole row of the tile. */
OTR_FUNCTION otr_tile_t otr_next_row(otr_tile_t tile, i64 rows, i64 length) {
  tile.row++;
  if (tile.row == tile.top + tile.height) {
    tile.start += tile.width;
    if (tile.start == length) {
      tile.start = 0;
      tile.top += tile.height;
      tile.height = otr_min_i64(OTR_TILE_ROWS, rows - tile.top);
    }
    tile.width = otr_min_i64(tile.columns, length - tile.start);
    tile.row = tile.top;
  }
  tile.column = tile.start;
  tile.left = tile.width;
  return tile;
}
#define OTR_TILES(first, last, rows, length, columns) \
  otr_tile_t otr_tile = otr_tiled(first, rows, length, columns); \
  for (i64 otr_at = (first), otr_count = 0; otr_at < (last); otr_at += otr_count, otr_tile = otr_next_row(otr_tile, rows, length))
#define OTR_TILE(rows, length, columns) otr_tile
#else
#define OTR_TILES(first, last, rows, length, columns) OTR_SPANS(first, last)
#define OTR_TILE(rows, length, columns) otr_tiled(otr_at, rows, length, columns)
#endif

/* ---- Checks ----
 *
 * A kernel cannot fail. One with checks is given `otr_failed`, where it leaves the code of a failure, one of OTR_ERR_*, and its
 * stream fails behind it. An index out of bounds is not used. */
#define OTR_EXECUTION 11
#define OTR_OUT_OF_RANGE 12
#define OTR_CHECK(condition, code) do { if (!(condition)) *otr_failed = (code); } while (0)
OTR_FUNCTION i64 otr_within(i64 index, i64 size) {
  return index >= 0 && index < size ? index : 0;
}
OTR_FUNCTION i64 otr_checked(OTR_GLOBAL i32* otr_failed, i64 index, i64 size) {
  OTR_CHECK(index >= 0 && index < size, OTR_OUT_OF_RANGE);
  return otr_within(index, size);
}

/* ---- Numbers ---- */

/* The C library has these for vectors, right to 4 units in the last place. A compiler uses them if it is told so. */
#if OTR_C && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 35)
#define OTR_SIMD1(name) \
  __attribute__((simd("notinbranch"))) float name##f(float); \
  __attribute__((simd("notinbranch"))) double name(double);
#define OTR_SIMD2(name) \
  __attribute__((simd("notinbranch"))) float name##f(float, float); \
  __attribute__((simd("notinbranch"))) double name(double, double);
OTR_SIMD1(sin) OTR_SIMD1(cos) OTR_SIMD1(tan) OTR_SIMD1(asin) OTR_SIMD1(acos) OTR_SIMD1(atan)
OTR_SIMD1(sinh) OTR_SIMD1(cosh) OTR_SIMD1(tanh) OTR_SIMD1(asinh) OTR_SIMD1(acosh) OTR_SIMD1(atanh)
OTR_SIMD1(log) OTR_SIMD1(log2) OTR_SIMD1(log10) OTR_SIMD1(log1p) OTR_SIMD1(expm1) OTR_SIMD1(exp2)
OTR_SIMD1(erfc) OTR_SIMD2(pow) OTR_SIMD2(atan2) OTR_SIMD2(hypot)
#endif
#endif

#define OTR_UNSIGNED(T) \
  OTR_FUNCTION T otr_add_##T(T x, T y) { return x + y; } \
  OTR_FUNCTION T otr_mul_##T(T x, T y) { return x * y; }
OTR_UNSIGNED(u32)
OTR_UNSIGNED(u64)
#define OTR_DIFFERENT_BITS(T) \
  OTR_FUNCTION T otr_xor_##T(T x, T y) { return x ^ y; }
OTR_DIFFERENT_BITS(i32)
OTR_DIFFERENT_BITS(i64)
OTR_DIFFERENT_BITS(u32)
OTR_DIFFERENT_BITS(u64)

/* ---- Folds ----
 *
 * OTR_FOLDED gives the fold of a slot over all lanes of a group. */
#if OTR_GROUP_SIZE == 1
#define OTR_MOST_LANES 64
#define OTR_FOLDED(step, T, name, scratch, lanes) otr_slots_##step##_##T(OTR_SLOTS(name), lanes)
#define OTR_SLOT_FOLD(T, name, step) \
  OTR_FUNCTION T otr_slots_##name##_##T(const T* slots, i32 lanes) { \
    T folded[OTR_MOST_LANES]; \
    for (i32 lane = 0; lane < lanes; lane++) folded[lane] = slots[lane]; \
    for (i32 width = lanes / 2; width > 0; width >>= 1) \
      OTR_INDEPENDENT for (i32 lane = 0; lane < width; lane++) folded[lane] = step(folded[lane], folded[lane + width]); \
    return folded[0]; \
  }
#define OTR_SLOT_FOLDS(T) \
  OTR_SLOT_FOLD(T, sum, otr_add_##T) \
  OTR_SLOT_FOLD(T, prod, otr_mul_##T) \
  OTR_SLOT_FOLD(T, max, otr_max_##T) \
  OTR_SLOT_FOLD(T, min, otr_min_##T)
OTR_SLOT_FOLDS(f32)
#if OTR_HAS_F64
OTR_SLOT_FOLDS(f64)
#endif
OTR_SLOT_FOLDS(i32)
OTR_SLOT_FOLDS(i64)
OTR_SLOT_FOLDS(u32)
OTR_SLOT_FOLDS(u64)
OTR_SLOT_FOLD(i32, xor, otr_xor_i32)
OTR_SLOT_FOLD(i64, xor, otr_xor_i64)
OTR_SLOT_FOLD(u32, xor, otr_xor_u32)
OTR_SLOT_FOLD(u64, xor, otr_xor_u64)
#else
#define OTR_FOLDED(step, T, name, scratch, lanes) otr_group_##step##_##T(OTR_ITEM_ARGUMENT name, scratch)
#define OTR_UNSIGNED_FOLDS(T) \
  OTR_FOLD(T, sum, otr_add_##T) \
  OTR_FOLD(T, prod, otr_mul_##T) \
  OTR_FOLD(T, max, otr_max_##T) \
  OTR_FOLD(T, min, otr_min_##T)
OTR_UNSIGNED_FOLDS(u32)
OTR_UNSIGNED_FOLDS(u64)
OTR_FOLD(i32, xor, otr_xor_i32)
OTR_FOLD(i64, xor, otr_xor_i64)
OTR_FOLD(u32, xor, otr_xor_u32)
OTR_FOLD(u64, xor, otr_xor_u64)
#endif

/* Whether the next number of a row is the greatest or the smallest so far, without a branch. */
#define OTR_NEXT_BETTER(T) \
  OTR_FUNCTION i32 otr_next_max_##T(T x, T best, i64 place) { \
    return (place < 0) | (x > best) | ((x != x) & (best == best)); \
  } \
  OTR_FUNCTION i32 otr_next_min_##T(T x, T best, i64 place) { \
    return (place < 0) | (x < best) | ((x != x) & (best == best)); \
  }
OTR_NEXT_BETTER(f32)
OTR_NEXT_BETTER(i32)
OTR_NEXT_BETTER(i64)
OTR_NEXT_BETTER(u32)
OTR_NEXT_BETTER(u64)
#if OTR_HAS_F64
OTR_NEXT_BETTER(f64)
#endif

/* The first place of the greatest or the smallest number; NaN is both. A place of -1 is none. */
#define OTR_BETTER(T) \
  OTR_FUNCTION i32 otr_better_max_##T(T x, i64 at, T best, i64 place) { \
    if (at < 0) return 0; \
    if (place < 0) return 1; \
    if (x != x) return best == best || at < place; \
    return best == best && (x > best || (x == best && at < place)); \
  } \
  OTR_FUNCTION i32 otr_better_min_##T(T x, i64 at, T best, i64 place) { \
    if (at < 0) return 0; \
    if (place < 0) return 1; \
    if (x != x) return best == best || at < place; \
    return best == best && (x < best || (x == best && at < place)); \
  }
OTR_BETTER(f32)
OTR_BETTER(i32)
OTR_BETTER(i64)
OTR_BETTER(u32)
OTR_BETTER(u64)
#if OTR_HAS_F64
OTR_BETTER(f64)
#endif
#if OTR_GROUP_SIZE == 1
#define OTR_PLACE(which, T, best, place, scratch, places, lanes) \
  otr_slots_place_##which##_##T(OTR_SLOTS(best), OTR_SLOTS(place), lanes)
#define OTR_FOLD_PLACE(which, T) \
  OTR_FUNCTION i64 otr_slots_place_##which##_##T(const T* best, const i64* place, i32 lanes) { \
    i32 found = 0; \
    for (i32 lane = 1; lane < lanes; lane++) \
      if (otr_better_##which##_##T(best[lane], place[lane], best[found], place[found])) found = lane; \
    return place[found]; \
  }
#else
#define OTR_PLACE(which, T, best, place, scratch, places, lanes) \
  otr_group_place_##which##_##T(OTR_ITEM_ARGUMENT best, place, scratch, places)
#define OTR_FOLD_PLACE(which, T) \
  OTR_FUNCTION i64 otr_group_place_##which##_##T(OTR_ITEM T best, i64 place, OTR_LOCAL T* scratch, OTR_LOCAL i64* places) { \
    i32 lane = OTR_LANE; \
    scratch[lane] = best; \
    places[lane] = place; \
    OTR_BARRIER(); \
    for (i32 width = OTR_GROUP_SIZE / 2; width > 0; width >>= 1) { \
      if (lane < width && otr_better_##which##_##T(scratch[lane + width], places[lane + width], scratch[lane], places[lane])) { \
        scratch[lane] = scratch[lane + width]; \
        places[lane] = places[lane + width]; \
      } \
      OTR_BARRIER(); \
    } \
    i64 result = places[0]; \
    OTR_BARRIER(); \
    return result; \
  }
#endif
#define OTR_FOLD_PLACES(T) OTR_FOLD_PLACE(max, T) OTR_FOLD_PLACE(min, T)
OTR_FOLD_PLACES(f32)
OTR_FOLD_PLACES(i32)
OTR_FOLD_PLACES(i64)
OTR_FOLD_PLACES(u32)
OTR_FOLD_PLACES(u64)
#if OTR_HAS_F64
OTR_FOLD_PLACES(f64)
#endif

/* Mean and sum of squared differences of numbers that come one by one, or of parts that are joined. */
#define OTR_MOMENTS(T) \
  typedef struct { \
    T mean, m2, weight; \
  } otr_moments_##T; \
  OTR_FUNCTION otr_moments_##T otr_joined_##T(otr_moments_##T a, otr_moments_##T b) { \
    otr_moments_##T joined; \
    T apart = b.mean - a.mean, weight = a.weight + b.weight, share = weight == 0 ? 0 : b.weight / weight; \
    joined.mean = a.mean + apart * share; \
    joined.m2 = a.m2 + b.m2 + apart * apart * a.weight * share; \
    joined.weight = weight; \
    return joined; \
  }
OTR_MOMENTS(f32)
#if OTR_HAS_F64
OTR_MOMENTS(f64)
#endif
#if OTR_GROUP_SIZE == 1
#define OTR_JOINED(T, name, scratch, lanes) otr_slots_joined_##T(OTR_SLOTS(name), lanes)
#define OTR_FOLD_MOMENTS(T) \
  OTR_FUNCTION otr_moments_##T otr_slots_joined_##T(const otr_moments_##T* slots, i32 lanes) { \
    otr_moments_##T folded[OTR_MOST_LANES]; \
    for (i32 lane = 0; lane < lanes; lane++) folded[lane] = slots[lane]; \
    for (i32 width = lanes / 2; width > 0; width >>= 1) \
      for (i32 lane = 0; lane < width; lane++) folded[lane] = otr_joined_##T(folded[lane], folded[lane + width]); \
    return folded[0]; \
  }
#else
#define OTR_JOINED(T, name, scratch, lanes) otr_group_joined_##T(OTR_ITEM_ARGUMENT name, scratch)
#define OTR_FOLD_MOMENTS(T) \
  OTR_FUNCTION otr_moments_##T otr_group_joined_##T(OTR_ITEM otr_moments_##T value, OTR_LOCAL otr_moments_##T* scratch) { \
    i32 lane = OTR_LANE; \
    scratch[lane] = value; \
    OTR_BARRIER(); \
    for (i32 width = OTR_GROUP_SIZE / 2; width > 0; width >>= 1) { \
      if (lane < width) { \
        otr_moments_##T a = scratch[lane], b = scratch[lane + width]; \
        scratch[lane] = otr_joined_##T(a, b); \
      } \
      OTR_BARRIER(); \
    } \
    otr_moments_##T result = scratch[0]; \
    OTR_BARRIER(); \
    return result; \
  }
#endif
OTR_FOLD_MOMENTS(f32)
#if OTR_HAS_F64
OTR_FOLD_MOMENTS(f64)
#endif
