/* Softmax and its gradients. A group has a row: the elements along one dimension.
 *
 *   KIND    0 softmax, 1 its logarithm, 2 and 3 their gradients, of which the second input is the result
 *   A, B, OUT   element types
 *   T, SUM  the register types of elements and of sums
 *   ORDER   the integer with as many bits as T
 *   KEEP    1: the output has elements of T, and keeps exponentials until their sum is known
 */
typedef struct {
  i64 rank;               /* of the other dimensions */
  i64 n;                  /* elements of a row, and how far they lie apart */
  i64 a_step, b_step, out_step;
  i64 sizes[8], a[8], b[8], out[8];
} arguments_t;

#if KIND < 2
/* Numbers as integers in the same order: compilers know how to find the largest of these with vectors. NaN is beyond the
 * infinities, where it does not matter: a row that has one becomes NaN whatever the largest number is. */
#define MAGNITUDE ((ORDER)(sizeof(ORDER) == 8 ? 0x7fffffffffffffff : 0x7fffffff))
OTR_FUNCTION ORDER otr_order(T x) {
  ORDER bits = (ORDER)F(bits)(x);
  return bits < 0 ? bits ^ MAGNITUDE : bits;
}
OTR_FUNCTION T otr_of_order(ORDER x) { return F(of_bits)(x < 0 ? x ^ MAGNITUDE : x); }

OTR_FUNCTION void otr_row(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL OTR_MEMORY(OUT) * out, i64 n,
    i64 step, i64 out_step, OTR_LOCAL SUM* sums, OTR_LOCAL ORDER* orders) {
  ORDER order = otr_order((T)(-OTR_INFINITY_F32));
  SUM sum = 0;
  OTR_REORDERED
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) {
    ORDER x = otr_order(OTR_LOAD(A, T, in, at * step));
    order = x > order ? x : order;
  }
  const T top = otr_of_order(OTR_CALL(group_max, ORDER)(OTR_ITEM_ARGUMENT order, orders));
#if KEEP
  OTR_INDEPENDENT
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE)
    OTR_STORE(OUT, T, out, at * out_step, F(exp)(OTR_LOAD(A, T, in, at * step) - top));
  OTR_REORDERED
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) sum += (SUM)OTR_LOAD(OUT, T, out, at * out_step);
#else
  OTR_REORDERED
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) sum += (SUM)F(exp)(OTR_LOAD(A, T, in, at * step) - top);
#endif
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, sums);
#if KIND == 0
  const T factor = (T)(1 / sum);
#else
  const T shift = (T)OTR_CALL(log, SUM)(sum);
#endif
  OTR_INDEPENDENT
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) {
#if KEEP
    T result = OTR_LOAD(OUT, T, out, at * out_step) * factor;
#elif KIND == 0
    T result = F(exp)(OTR_LOAD(A, T, in, at * step) - top) * factor;
#else
    T result = OTR_LOAD(A, T, in, at * step) - top - shift;
#endif
    OTR_STORE(OUT, T, out, at * out_step, result);
  }
}
#endif

OTR_KERNEL(softmax)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in_a, OTR_GLOBAL const OTR_MEMORY(B) * in_b,
    OTR_GLOBAL OTR_MEMORY(OUT) * out, const arguments_t args) {
  OTR_SHARED(SUM, sums, OTR_GROUP_SIZE);
  const i64 from_a = otr_offset(OTR_GROUP_ID(0), args.sizes, args.a, (i32)args.rank);
  const i64 to = otr_offset(OTR_GROUP_ID(0), args.sizes, args.out, (i32)args.rank);
#if KIND < 2
  OTR_SHARED(ORDER, orders, OTR_GROUP_SIZE);
  (void)in_b;
  /* A compiler makes vectors of elements that it knows to lie side by side. */
  if (args.a_step == 1 && args.out_step == 1)
    otr_row(OTR_ITEM_ARGUMENT in_a + from_a, out + to, args.n, 1, 1, sums, orders);
  else
    otr_row(OTR_ITEM_ARGUMENT in_a + from_a, out + to, args.n, args.a_step, args.out_step, sums, orders);
#else
  const i64 from_b = otr_offset(OTR_GROUP_ID(0), args.sizes, args.b, (i32)args.rank);
  SUM sum = 0;
  OTR_REORDERED
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
