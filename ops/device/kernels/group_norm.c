/* Normalization of groups of channels of a sample.
 *
 *   KIND        0 forward, 1 the gradient of the input, both by a group of items for each group of channels; 2 the gradients of
 *               weight and bias, by one for each channel
 *   A           element type of the input; G of the incoming gradient; W and B of weight and bias; OUT of the result; STAT of mean
 *               and reciprocal deviation
 *   WEIGHT, BIAS  1: there is one. In kind 2 the gradients that are wanted
 *   T, SUM      the register types of elements and of sums
 */
typedef struct {
  i64 samples, groups, channels, elements; /* channels of a group, elements of a channel */
  i64 in[3], grad[3], out[3];              /* strides of samples, channels and elements */
  i64 mean[2], rstd[2];                    /* strides of samples and groups */
  i64 weight, bias;                        /* strides of channels */
  OTR_WORD(SUM) epsilon;
} arguments_t;

/* The place of the element `at` of the group of channels. */
#define PLACE(strides) \
  (sample * (strides)[0] + (first + at / args.elements) * (strides)[1] + at % args.elements * (strides)[2])

#if KIND < 2
OTR_KERNEL(group_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL const OTR_MEMORY(G) * grad,
    OTR_GLOBAL OTR_MEMORY(STAT) * means, OTR_GLOBAL OTR_MEMORY(STAT) * rstds,
    OTR_GLOBAL const OTR_MEMORY(W) * weight, OTR_GLOBAL const OTR_MEMORY(B) * bias, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 sample = OTR_GROUP_ID(0) / args.groups, group = OTR_GROUP_ID(0) % args.groups;
  const i64 first = group * args.channels, n = args.channels * args.elements;
  const i64 of_mean = sample * args.mean[0] + group * args.mean[1];
  const i64 of_rstd = sample * args.rstd[0] + group * args.rstd[1];
  (void)grad;
  (void)weight;
  (void)bias;
#if KIND == 0
  SUM mean = 0, squares = 0;
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) mean += (SUM)OTR_LOAD(A, T, in, PLACE(args.in));
  mean = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT mean, scratch) / (SUM)n;
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) {
    SUM x = (SUM)OTR_LOAD(A, T, in, PLACE(args.in)) - mean;
    squares += x * x;
  }
  squares = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT squares, scratch) / (SUM)n;
  const SUM rstd = 1 / OTR_CALL(sqrt, SUM)(squares + args.epsilon.value);
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) {
    T x = (OTR_LOAD(A, T, in, PLACE(args.in)) - (T)mean) * (T)rstd;
#if WEIGHT
    x *= OTR_LOAD(W, T, weight, (first + at / args.elements) * args.weight);
#endif
#if BIAS
    x += OTR_LOAD(B, T, bias, (first + at / args.elements) * args.bias);
#endif
    OTR_STORE(OUT, T, out, PLACE(args.out), x);
  }
  if (OTR_LANE == 0) {
    OTR_STORE(STAT, SUM, means, of_mean, mean);
    OTR_STORE(STAT, SUM, rstds, of_rstd, rstd);
  }
#else
  const T mean = OTR_LOAD(STAT, T, means, of_mean), rstd = OTR_LOAD(STAT, T, rstds, of_rstd);
  SUM sum = 0, products = 0;
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) {
    T g = OTR_LOAD(G, T, grad, PLACE(args.grad)), x = (OTR_LOAD(A, T, in, PLACE(args.in)) - mean) * rstd;
#if WEIGHT
    g *= OTR_LOAD(W, T, weight, (first + at / args.elements) * args.weight);
#endif
    sum += (SUM)g;
    products += (SUM)(g * x);
  }
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch) / (SUM)n;
  products = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT products, scratch) / (SUM)n;
  for (i64 at = OTR_LANE; at < n; at += OTR_GROUP_SIZE) {
    T g = OTR_LOAD(G, T, grad, PLACE(args.grad)), x = (OTR_LOAD(A, T, in, PLACE(args.in)) - mean) * rstd;
#if WEIGHT
    g *= OTR_LOAD(W, T, weight, (first + at / args.elements) * args.weight);
#endif
    OTR_STORE(OUT, T, out, PLACE(args.out), rstd * (g - (T)sum - x * (T)products));
  }
#endif
}

#else
OTR_KERNEL(group_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL const OTR_MEMORY(G) * grad,
    OTR_GLOBAL const OTR_MEMORY(STAT) * means, OTR_GLOBAL const OTR_MEMORY(STAT) * rstds,
    OTR_GLOBAL OTR_MEMORY(W) * of_weight, OTR_GLOBAL OTR_MEMORY(B) * of_bias, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 channel = OTR_GROUP_ID(0), group = channel / args.channels;
  SUM sum = 0, products = 0;
  (void)of_weight;
  (void)of_bias;
  for (i64 at = OTR_LANE; at < args.samples * args.elements; at += OTR_GROUP_SIZE) {
    const i64 sample = at / args.elements, element = at % args.elements;
    const T mean = OTR_LOAD(STAT, T, means, sample * args.mean[0] + group * args.mean[1]);
    const T rstd = OTR_LOAD(STAT, T, rstds, sample * args.rstd[0] + group * args.rstd[1]);
    T g = OTR_LOAD(G, T, grad, sample * args.grad[0] + channel * args.grad[1] + element * args.grad[2]);
    T x = OTR_LOAD(A, T, in, sample * args.in[0] + channel * args.in[1] + element * args.in[2]);
    sum += (SUM)g;
    products += (SUM)(g * (x - mean) * rstd);
  }
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch);
  products = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT products, scratch);
  if (OTR_LANE == 0) {
#if WEIGHT
    OTR_STORE(W, SUM, of_weight, channel * args.weight, products);
#endif
#if BIAS
    OTR_STORE(B, SUM, of_bias, channel * args.bias, sum);
#endif
  }
}
#endif
