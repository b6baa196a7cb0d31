/* Element by element: RESULT of the registers a, b and c, which hold what the inputs have at the place of an output's
 * element, and of the scalars s0 to s3. Nothing is assumed of aliases but that an input that overlaps the output is at
 * the same places.
 *
 *   INPUTS          how many, 0 to 3
 *   A, B, C, OUT    element types
 *   T               the register type that is computed in
 *   R               the register type of RESULT
 *   FLOATS          1 if T is f32 or f64
 *   RANK            0: all operands are dense or have one element (STEP_A, STEP_B, STEP_C are 1 or 0), and a group has
 *                   CHUNK elements. Else the rank of the layout
 *   BY_ROW          with a rank: a group goes along the last dimension, else every item finds its own places
 */
typedef struct {
  i64 count;         /* elements; by row the rows */
  i64 rows;          /* of a group, by row */
  i64 pieces;        /* of a row, by row: a group has one */
  i64 piece;         /* elements of it */
#if RANK > 0
  i64 sizes[RANK];
  i64 strides[INPUTS + 1][RANK]; /* of the output, then of the inputs */
#endif
  OTR_WORD(T) scalars[4];
} arguments_t;

/* x, but not below low and not above high, which wins; NaN stays. */
OTR_FUNCTION T otr_within(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
#if FLOATS
/* From the nearer end, so that both ends are exact. */
OTR_FUNCTION T otr_between(T x, T y, T weight) {
  return weight < (T)0.5 && weight > (T)-0.5 ? x + weight * (y - x) : y - (y - x) * (1 - weight);
}
OTR_FUNCTION T otr_silu_gradient(T grad, T x, T sigmoid) { return grad * sigmoid * (1 + x * (1 - sigmoid)); }
OTR_FUNCTION T otr_gelu_gradient(T grad, T x, T by_tanh) {
  if (by_tanh != 0) {
    T t = F(tanh)(ROOT_2_PI * (x + (T)0.044715 * x * x * x));
    T slope = ROOT_2_PI * (1 + (T)0.134145 * x * x);
    return grad * ((T)0.5 * (1 + t) + (T)0.5 * x * (1 - t * t) * slope);
  }
  return grad * ((T)0.5 * (1 + F(erf)(x * ROOT_1_2)) + x * F(exp)((T)-0.5 * x * x) * (T)0.39894228040143267794);
}
#endif

#if INPUTS > 0
#define VALUE_A(at) T a = OTR_LOAD(A, T, in_a, at)
#else
#define VALUE_A(at)
#endif
#if INPUTS > 1
#define VALUE_B(at) T b = OTR_LOAD(B, T, in_b, at)
#else
#define VALUE_B(at)
#endif
#if INPUTS > 2
#define VALUE_C(at) T c = OTR_LOAD(C, T, in_c, at)
#else
#define VALUE_C(at)
#endif

OTR_KERNEL(elementwise)(OTR_ITEM
#if INPUTS > 0
    OTR_GLOBAL const OTR_MEMORY(A) * in_a,
#endif
#if INPUTS > 1
    OTR_GLOBAL const OTR_MEMORY(B) * in_b,
#endif
#if INPUTS > 2
    OTR_GLOBAL const OTR_MEMORY(C) * in_c,
#endif
    OTR_GLOBAL OTR_MEMORY(OUT) * out, const arguments_t args) {
  const T s0 = args.scalars[0].value, s1 = args.scalars[1].value;
  const T s2 = args.scalars[2].value, s3 = args.scalars[3].value;
  (void)s0;
  (void)s1;
  (void)s2;
  (void)s3;
#if RANK == 0
  i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  OTR_INDEPENDENT
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    VALUE_A(at * STEP_A);
    VALUE_B(at * STEP_B);
    VALUE_C(at * STEP_C);
    OTR_STORE(OUT, R, out, at, RESULT);
  }
#elif BY_ROW
  i64 row = OTR_GROUP_ID(0) / args.pieces * args.rows;
  i64 last = row + args.rows < args.count ? row + args.rows : args.count;
  i64 begin = OTR_GROUP_ID(0) % args.pieces * args.piece;
  i64 size = args.sizes[RANK - 1];
  i64 end = begin + args.piece < size ? begin + args.piece : size;
  for (; row < last; row++) {
    i64 to = otr_offset(row, args.sizes, args.strides[0], RANK - 1), step = args.strides[0][RANK - 1];
#if INPUTS > 0
    i64 from_a = otr_offset(row, args.sizes, args.strides[1], RANK - 1), step_a = args.strides[1][RANK - 1];
#endif
#if INPUTS > 1
    i64 from_b = otr_offset(row, args.sizes, args.strides[2], RANK - 1), step_b = args.strides[2][RANK - 1];
#endif
#if INPUTS > 2
    i64 from_c = otr_offset(row, args.sizes, args.strides[3], RANK - 1), step_c = args.strides[3][RANK - 1];
#endif
    for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
      VALUE_A(from_a + at * step_a);
      VALUE_B(from_b + at * step_b);
      VALUE_C(from_c + at * step_c);
      OTR_STORE(OUT, R, out, to + at * step, RESULT);
    }
  }
#else
  i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    VALUE_A(otr_offset(at, args.sizes, args.strides[1], RANK));
    VALUE_B(otr_offset(at, args.sizes, args.strides[2], RANK));
    VALUE_C(otr_offset(at, args.sizes, args.strides[3], RANK));
    OTR_STORE(OUT, R, out, otr_offset(at, args.sizes, args.strides[0], RANK), RESULT);
  }
#endif
}
