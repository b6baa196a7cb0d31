/* Softmax and its gradients. A group has a row: the elements along one dimension.
 *
 *   KIND    0 softmax, 1 its logarithm, 2 and 3 their gradients, of which the second input is the result
 *   A, B, OUT   element types
 *   T, SUM  the register types of elements and of sums
 */
typedef struct {
  i64 rank;               /* of the other dimensions */
  i64 n;                  /* elements of a row, and how far they lie apart */
  i64 a_step, b_step, out_step;
  i64 sizes[8], a[8], b[8], out[8];
} arguments_t;

OTR_KERNEL(softmax)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in_a, OTR_GLOBAL const OTR_MEMORY(B) * in_b,
    OTR_GLOBAL OTR_MEMORY(OUT) * out, const arguments_t args) {
  OTR_SHARED(SUM, sums, OTR_GROUP_SIZE);
  const i64 from_a = otr_offset(OTR_GROUP_ID(0), args.sizes, args.a, (i32)args.rank);
  const i64 to = otr_offset(OTR_GROUP_ID(0), args.sizes, args.out, (i32)args.rank);
  SUM sum = 0;
#if KIND < 2
  OTR_SHARED(T, most, OTR_GROUP_SIZE);
  T top = (T)(-OTR_INFINITY_F32);
  (void)in_b;
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE)
    top = F(max)(top, OTR_LOAD(A, T, in_a, from_a + at * args.a_step));
  top = F(group_max)(OTR_ITEM_ARGUMENT top, most);
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE)
    sum += (SUM)F(exp)(OTR_LOAD(A, T, in_a, from_a + at * args.a_step) - top);
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, sums);
#if KIND == 0
  const T factor = (T)(1 / sum);
#else
  const T shift = (T)OTR_CALL(log, SUM)(sum);
#endif
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    T x = OTR_LOAD(A, T, in_a, from_a + at * args.a_step) - top;
#if KIND == 0
    OTR_STORE(OUT, T, out, to + at * args.out_step, F(exp)(x) * factor);
#else
    OTR_STORE(OUT, T, out, to + at * args.out_step, x - shift);
#endif
  }
#else
  const i64 from_b = otr_offset(OTR_GROUP_ID(0), args.sizes, args.b, (i32)args.rank);
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    SUM grad = (SUM)OTR_LOAD(A, T, in_a, from_a + at * args.a_step);
#if KIND == 2
    grad *= (SUM)OTR_LOAD(B, T, in_b, from_b + at * args.b_step);
#endif
    sum += grad;
  }
  /* The gradient may be the result: nothing is written before all is read. */
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, sums);
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    T grad = OTR_LOAD(A, T, in_a, from_a + at * args.a_step), y = OTR_LOAD(B, T, in_b, from_b + at * args.b_step);
#if KIND == 2
    OTR_STORE(OUT, T, out, to + at * args.out_step, y * (grad - (T)sum));
#else
    OTR_STORE(OUT, T, out, to + at * args.out_step, grad - F(exp)(y) * (T)sum);
#endif
  }
#endif
}
