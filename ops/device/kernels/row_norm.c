/* Normalization of dense rows: by mean and deviation, or by the root mean square alone (RMS 1).
 *
 *   KIND        0 forward; 1 the gradient of the input; 2 sums over rows, for the gradients of weight and bias, in parts
 *               that lie in a workspace; 3 those parts joined
 *   A           element type of the input; G of the incoming gradient; W and B of weight and bias; OUT of the result;
 *               STAT of mean and reciprocal deviation
 *   WEIGHT, BIAS  1: there is one. In kind 3 the gradients that are wanted
 *   T, SUM      the register types of elements and of sums
 *   COLUMNS     of a group, in kind 2
 */
typedef struct {
  i64 rows, n;      /* how many, and of what length */
  i64 parts, part;  /* in kinds 2 and 3: how many, and rows of one */
  OTR_WORD(SUM) epsilon;
} arguments_t;

#if KIND == 0
OTR_KERNEL(row_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL const OTR_MEMORY(W) * weight,
    OTR_GLOBAL const OTR_MEMORY(B) * bias, OTR_GLOBAL OTR_MEMORY(OUT) * out, OTR_GLOBAL OTR_MEMORY(STAT) * means,
    OTR_GLOBAL OTR_MEMORY(STAT) * rstds, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 first = OTR_GROUP_ID(0) * args.n;
  SUM mean = 0, squares = 0;
  (void)weight;
  (void)bias;
  (void)means;
#if !RMS
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) mean += (SUM)OTR_LOAD(A, T, in, first + at);
  mean = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT mean, scratch) / (SUM)args.n;
#endif
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    SUM x = (SUM)OTR_LOAD(A, T, in, first + at) - mean;
    squares += x * x;
  }
  squares = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT squares, scratch) / (SUM)args.n;
  const SUM rstd = 1 / OTR_CALL(sqrt, SUM)(squares + args.epsilon.value);
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    T x = (OTR_LOAD(A, T, in, first + at) - (T)mean) * (T)rstd;
#if WEIGHT
    x *= OTR_LOAD(W, T, weight, at);
#endif
#if BIAS
    x += OTR_LOAD(B, T, bias, at);
#endif
    OTR_STORE(OUT, T, out, first + at, x);
  }
  if (OTR_LANE == 0) {
#if !RMS
    OTR_STORE(STAT, SUM, means, OTR_GROUP_ID(0), mean);
#endif
    OTR_STORE(STAT, SUM, rstds, OTR_GROUP_ID(0), rstd);
  }
}

#elif KIND == 1
OTR_KERNEL(row_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(G) * grad, OTR_GLOBAL const OTR_MEMORY(A) * in,
    OTR_GLOBAL const OTR_MEMORY(STAT) * means, OTR_GLOBAL const OTR_MEMORY(STAT) * rstds,
    OTR_GLOBAL const OTR_MEMORY(W) * weight, OTR_GLOBAL OTR_MEMORY(OUT) * out, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 first = OTR_GROUP_ID(0) * args.n;
  const T rstd = OTR_LOAD(STAT, T, rstds, OTR_GROUP_ID(0));
#if RMS
  const T mean = 0;
  (void)means;
#else
  const T mean = OTR_LOAD(STAT, T, means, OTR_GROUP_ID(0));
#endif
  SUM sum = 0, products = 0;
  (void)weight;
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    T g = OTR_LOAD(G, T, grad, first + at), x = (OTR_LOAD(A, T, in, first + at) - mean) * rstd;
#if WEIGHT
    g *= OTR_LOAD(W, T, weight, at);
#endif
    sum += (SUM)g;
    products += (SUM)(g * x);
  }
#if !RMS
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch) / (SUM)args.n;
#else
  sum = 0;
#endif
  products = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT products, scratch) / (SUM)args.n;
  for (i64 at = OTR_LANE; at < args.n; at += OTR_GROUP_SIZE) {
    T g = OTR_LOAD(G, T, grad, first + at), x = (OTR_LOAD(A, T, in, first + at) - mean) * rstd;
#if WEIGHT
    g *= OTR_LOAD(W, T, weight, at);
#endif
    OTR_STORE(OUT, T, out, first + at, rstd * (g - (T)sum - x * (T)products));
  }
}

#elif KIND == 2
#define PER_ITEM (COLUMNS / OTR_GROUP_SIZE)
OTR_KERNEL(row_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(G) * grad, OTR_GLOBAL const OTR_MEMORY(A) * in,
    OTR_GLOBAL const OTR_MEMORY(STAT) * means, OTR_GLOBAL const OTR_MEMORY(STAT) * rstds, OTR_GLOBAL SUM * out,
    const arguments_t args) {
  const i64 part = OTR_GROUP_ID(0) % args.parts, column = OTR_GROUP_ID(0) / args.parts * COLUMNS;
  const i64 begin = part * args.part, end = begin + args.part < args.rows ? begin + args.part : args.rows;
  SUM products[PER_ITEM], sums[PER_ITEM];
  for (i32 k = 0; k < PER_ITEM; k++) products[k] = sums[k] = 0;
  for (i64 row = begin; row < end; row++) {
    const T rstd = OTR_LOAD(STAT, T, rstds, row);
#if RMS
    const T mean = 0;
    (void)means;
#else
    const T mean = OTR_LOAD(STAT, T, means, row);
#endif
    for (i32 k = 0; k < PER_ITEM; k++) {
      i64 at = column + k * OTR_GROUP_SIZE + OTR_LANE;
      if (at < args.n) {
        T g = OTR_LOAD(G, T, grad, row * args.n + at), x = OTR_LOAD(A, T, in, row * args.n + at);
        products[k] += (SUM)(g * (x - mean) * rstd);
        sums[k] += (SUM)g;
      }
    }
  }
  for (i32 k = 0; k < PER_ITEM; k++) {
    i64 at = column + k * OTR_GROUP_SIZE + OTR_LANE;
    if (at < args.n) {
      out[part * args.n + at] = products[k];
      out[(args.parts + part) * args.n + at] = sums[k];
    }
  }
}

#else
OTR_KERNEL(row_norm)(OTR_ITEM OTR_GLOBAL const SUM * in, OTR_GLOBAL OTR_MEMORY(W) * of_weight,
    OTR_GLOBAL OTR_MEMORY(B) * of_bias, const arguments_t args) {
  const i64 column = (i64)OTR_GROUP_ID(0) * COLUMNS;
  (void)of_weight;
  (void)of_bias;
  for (i64 at = column + OTR_LANE; at < column + COLUMNS && at < args.n; at += OTR_GROUP_SIZE) {
    SUM product = 0, sum = 0;
    for (i64 part = 0; part < args.parts; part++) {
      product += in[part * args.n + at];
      sum += in[(args.parts + part) * args.n + at];
    }
#if WEIGHT
    OTR_STORE(W, SUM, of_weight, at, product);
#endif
#if BIAS
    OTR_STORE(B, SUM, of_bias, at, sum);
#endif
  }
}
#endif
