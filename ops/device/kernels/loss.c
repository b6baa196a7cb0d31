/* Losses that are sums over elements, and their gradients.
 *
 *   LOSS      0 binary cross entropy, 1 that of logits, 2 smooth L1, 3 Huber, 4 Kullback-Leibler, 5 Jensen-Shannon
 *   PASS      0 the loss of each element; 1 sums of parts, into a workspace; 2 these together; 3 the gradient of each element
 *   X, Y      element types of input and target; W, P of weight and factor, which are there if WEIGHT and FACTOR are 1; G of
 *             the incoming gradient; OUT of the result
 *   T, SUM    the register types of elements and of sums
 */
typedef struct {
  i64 count, part;   /* elements, and those of a group */
  i64 parts;         /* by what a gradient is divided, or how many parts are put together */
  i64 rank;
  i64 sizes[8], x[8], y[8], weight[8], factor[8], grad[8], out[8];
  OTR_WORD(T) parameter;
  OTR_WORD(SUM) divisor;
} arguments_t;

#if PASS != 2
#if LOSS == 0
OTR_FUNCTION T otr_bounded(T log_) { return log_ < -100 ? (T)-100 : log_; }
#elif LOSS == 5
/* x log(x / y), which is 0 where x is 0. */
OTR_FUNCTION T otr_relative(T x, T y) { return x == 0 && y == y ? (T)0 : x * F(log)(x / y); }
#endif

OTR_FUNCTION T otr_term(T x, T y, T weight, T factor, T s) {
  (void)weight;
  (void)factor;
  (void)s;
#if LOSS == 0
  return -weight * (y * otr_bounded(F(log)(x)) + (1 - y) * otr_bounded(F(log1p)(-x)));
#elif LOSS == 1
  const T of_ones = (factor - 1) * y + 1, below = x < 0 ? -x : (T)0;
  return weight * ((1 - y) * x + of_ones * (F(log1p)(F(exp)(-F(abs)(x))) + below));
#elif LOSS == 2
  const T distance = F(abs)(x - y);
  return distance < s ? (T)0.5 * distance * distance / s : distance - (T)0.5 * s;
#elif LOSS == 3
  const T distance = F(abs)(x - y);
  return distance <= s ? (T)0.5 * distance * distance : s * (distance - (T)0.5 * s);
#elif LOSS == 4
  if (s != 0) return F(exp)(y) * (y - x);
  return y == 0 && x == x ? (T)0 : y * (F(log)(y) - x);
#else
  const T mean = (T)0.5 * (x + y);
  return (T)0.5 * (otr_relative(x, mean) + otr_relative(y, mean));
#endif
}

OTR_FUNCTION T otr_slope(T x, T y, T weight, T s) {
  (void)weight;
  (void)s;
#if LOSS == 0
  const T product = (1 - x) * x;
  return weight * (x - y) / (product < (T)1e-12 ? (T)1e-12 : product);
#elif LOSS == 2
  const T distance = x - y;
  return distance <= -s ? (T)-1 : distance >= s ? (T)1 : distance / s;
#else
  const T distance = x - y;
  return distance <= -s ? -s : distance >= s ? s : distance;
#endif
}

OTR_KERNEL(loss)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(X) * in, OTR_GLOBAL const OTR_MEMORY(Y) * target,
    OTR_GLOBAL const OTR_MEMORY(W) * weights, OTR_GLOBAL const OTR_MEMORY(P) * factors,
    OTR_GLOBAL const OTR_MEMORY(G) * grads,
#if PASS == 1
    OTR_GLOBAL SUM * out,
#else
    OTR_GLOBAL OTR_MEMORY(OUT) * out,
#endif
    const arguments_t args) {
  const i64 begin = OTR_GROUP_ID(0) * args.part;
  const i64 end = begin + args.part < args.count ? begin + args.part : args.count;
  const T s = args.parameter.value;
  (void)weights;
  (void)factors;
  (void)grads;
#if PASS == 1
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  SUM sum = 0;
#endif
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    const T x = OTR_LOAD(X, T, in, otr_offset(at, args.sizes, args.x, (i32)args.rank));
    const T y = OTR_LOAD(Y, T, target, otr_offset(at, args.sizes, args.y, (i32)args.rank));
    T weight = 1, factor = 1;
#if WEIGHT
    weight = OTR_LOAD(W, T, weights, otr_offset(at, args.sizes, args.weight, (i32)args.rank));
#endif
#if FACTOR
    factor = OTR_LOAD(P, T, factors, otr_offset(at, args.sizes, args.factor, (i32)args.rank));
#endif
#if PASS == 0
    OTR_STORE(OUT, T, out, otr_offset(at, args.sizes, args.out, (i32)args.rank), otr_term(x, y, weight, factor, s));
#elif PASS == 1
    sum += (SUM)otr_term(x, y, weight, factor, s);
#else
    const T grad = OTR_LOAD(G, T, grads, otr_offset(at, args.sizes, args.grad, (i32)args.rank));
    (void)factor;
    OTR_STORE(OUT, T, out, otr_offset(at, args.sizes, args.out, (i32)args.rank),
        grad * otr_slope(x, y, weight, s) / (T)args.parts);
#endif
  }
#if PASS == 1
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch);
  if (OTR_LANE == 0) out[OTR_GROUP_ID(0)] = sum;
#endif
}

#else
OTR_KERNEL(loss)(OTR_ITEM OTR_GLOBAL const SUM * in, OTR_GLOBAL OTR_MEMORY(OUT) * out, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  SUM sum = 0;
  for (i64 at = OTR_LANE; at < args.parts; at += OTR_GROUP_SIZE) sum += in[at];
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch);
  if (OTR_LANE == 0) OTR_STORE(OUT, SUM, out, 0, sum / args.divisor.value);
}
#endif
