/* Running results along a dimension: an element becomes what is joined of all elements up to it. A group has a line.
 *
 *   KIND     0 sums, 1 products, 2 logarithms of sums of exponentials, 3 the largest, 4 the smallest, both with the number of
 *            the last of equals
 *   A, OUT   element types
 *   ACC      the register type of what is joined
 *   PART     neighbours that an item joins by itself
 */
typedef struct {
  i64 rank;                           /* of the other dimensions */
  i64 n;                              /* elements of a line */
  i64 in_step, out_step, index_step;
  i64 sizes[8], in[8], out[8], indices[8];
} arguments_t;

/* A result, and where it stands in the line: nothing yet if the number is negative. */
typedef struct {
  ACC value;
  i64 number;
} state_t;

OTR_FUNCTION state_t otr_join(state_t a, state_t b) {
  if (a.number < 0) return b;
  if (b.number < 0) return a;
#if KIND == 0
  b.value = OTR_CALL(add, ACC)(a.value, b.value);
#elif KIND == 1
  b.value = OTR_CALL(mul, ACC)(a.value, b.value);
#elif KIND == 2
  const ACC low = OTR_CALL(min, ACC)(a.value, b.value), high = OTR_CALL(max, ACC)(a.value, b.value);
  /* Two equal infinities are their own sum. */
  const i32 same = low == high && OTR_CALL(abs, ACC)(low) == (ACC)OTR_INFINITY_F32;
  b.value = same ? low : high + OTR_CALL(log1p, ACC)(OTR_CALL(exp, ACC)(low - high));
#elif KIND == 3
  if (!OTR_CALL(isnan, ACC)(b.value) && (OTR_CALL(isnan, ACC)(a.value) || b.value < a.value)) b = a;
#else
  if (!OTR_CALL(isnan, ACC)(b.value) && (OTR_CALL(isnan, ACC)(a.value) || b.value > a.value)) b = a;
#endif
  return b;
}

OTR_KERNEL(scan)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    OTR_GLOBAL i64* indices, const arguments_t args) {
  OTR_SHARED(state_t, totals, OTR_GROUP_SIZE);
  const i64 from = otr_offset(OTR_GROUP_ID(0), args.sizes, args.in, (i32)args.rank);
  const i64 to = otr_offset(OTR_GROUP_ID(0), args.sizes, args.out, (i32)args.rank);
  const i64 to_index = otr_offset(OTR_GROUP_ID(0), args.sizes, args.indices, (i32)args.rank);
  state_t before, own[PART];
  before.value = 0;
  before.number = -1;
  (void)indices;
  (void)to_index;
  for (i64 begin = 0; begin < args.n; begin += OTR_GROUP_SIZE * PART) {
    const i64 first = begin + (i64)OTR_LANE * PART;
    for (i32 k = 0; k < PART; k++) {
      own[k].value = 0;
      own[k].number = -1;
      if (first + k < args.n) {
        own[k].value = OTR_LOAD(A, ACC, in, from + (first + k) * args.in_step);
        own[k].number = first + k;
      }
      if (k > 0) own[k] = otr_join(own[k - 1], own[k]);
    }
    totals[OTR_LANE] = own[PART - 1];
    OTR_BARRIER();
    for (i32 distance = 1; distance < OTR_GROUP_SIZE; distance *= 2) {
      state_t sum = totals[OTR_LANE];
      if (OTR_LANE >= distance) sum = otr_join(totals[OTR_LANE - distance], sum);
      OTR_BARRIER();
      totals[OTR_LANE] = sum;
      OTR_BARRIER();
    }
    const state_t front = OTR_LANE > 0 ? otr_join(before, totals[OTR_LANE > 0 ? OTR_LANE - 1 : 0]) : before;
    for (i32 k = 0; k < PART && first + k < args.n; k++) {
      const state_t result = otr_join(front, own[k]);
      OTR_STORE(OUT, ACC, out, to + (first + k) * args.out_step, result.value);
#if KIND > 2
      indices[to_index + (first + k) * args.index_step] = result.number;
#endif
    }
    before = otr_join(before, totals[OTR_GROUP_SIZE - 1]);
    OTR_BARRIER();
  }
}
