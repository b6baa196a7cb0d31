/* Normalization of channels over samples and places. A group has a channel, in all kinds.
 *
 *   KIND        0 forward; 1 the gradients
 *   TRAINING    1: statistics are of the input; 0: the running ones
 *   A, G, OUT   element types of the input, the incoming gradient, and the result
 *   W, B        of weight and bias, or of their gradients; STAT, RUN of statistics and running statistics
 *   WEIGHT, BIAS, MEANS, RSTDS, RUN_MEAN, RUN_VAR, OUT_THERE   1: there is one
 *   T, SUM      the register types of elements and of sums
 */
typedef struct {
  i64 samples, places;
  i64 in[3], grad[3], out[3];     /* strides of sample, channel and place */
  OTR_WORD(SUM) momentum, epsilon;
} arguments_t;

#define EACH(name, strides) \
  for (i64 sample = 0; sample < args.samples; sample++) \
    for (i64 place = OTR_LANE, name = sample * strides[0] + channel * strides[1] + place * strides[2]; \
         place < args.places; place += OTR_GROUP_SIZE, name += OTR_GROUP_SIZE * strides[2])

#if KIND == 0
OTR_KERNEL(batch_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL const OTR_MEMORY(W) * weight,
    OTR_GLOBAL const OTR_MEMORY(B) * bias, OTR_GLOBAL OTR_MEMORY(RUN) * running_mean,
    OTR_GLOBAL OTR_MEMORY(RUN) * running_var, OTR_GLOBAL OTR_MEMORY(OUT) * out, OTR_GLOBAL OTR_MEMORY(STAT) * means,
    OTR_GLOBAL OTR_MEMORY(STAT) * rstds, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 channel = OTR_GROUP_ID(0);
  const SUM count = (SUM)(args.samples * args.places);
  (void)weight;
  (void)bias;
  (void)running_mean;
  (void)running_var;
  (void)means;
  (void)rstds;
#if TRAINING
  SUM mean = 0, variance = 0;
  EACH(at, args.in) mean += (SUM)OTR_LOAD(A, T, in, at);
  mean = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT mean, scratch) / count;
  EACH(at, args.in) {
    SUM x = (SUM)OTR_LOAD(A, T, in, at) - mean;
    variance += x * x;
  }
  variance = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT variance, scratch) / count;
  if (OTR_LANE == 0) {
    const SUM momentum = args.momentum.value;
    (void)momentum;
#if RUN_MEAN
    OTR_STORE(RUN, SUM, running_mean, channel, (1 - momentum) * OTR_LOAD(RUN, SUM, running_mean, channel) + momentum * mean);
#endif
#if RUN_VAR
    OTR_STORE(RUN, SUM, running_var, channel,
        (1 - momentum) * OTR_LOAD(RUN, SUM, running_var, channel) + momentum * variance * (count / (count - 1)));
#endif
  }
#else
  const SUM mean = OTR_LOAD(RUN, SUM, running_mean, channel), variance = OTR_LOAD(RUN, SUM, running_var, channel);
  (void)scratch;
  (void)count;
#endif
  const SUM rstd = 1 / OTR_CALL(sqrt, SUM)(variance + args.epsilon.value);
  T factor = (T)rstd, shift = 0;
#if WEIGHT
  factor *= OTR_LOAD(W, T, weight, channel);
#endif
#if BIAS
  shift = OTR_LOAD(B, T, bias, channel);
#endif
  for (i64 sample = 0; sample < args.samples; sample++)
    for (i64 place = OTR_LANE; place < args.places; place += OTR_GROUP_SIZE) {
      T x = OTR_LOAD(A, T, in, sample * args.in[0] + channel * args.in[1] + place * args.in[2]);
      i64 to = sample * args.out[0] + channel * args.out[1] + place * args.out[2];
      OTR_STORE(OUT, T, out, to, (x - (T)mean) * factor + shift);
    }
  if (OTR_LANE == 0) {
#if MEANS
    OTR_STORE(STAT, SUM, means, channel, mean);
#endif
#if RSTDS
    OTR_STORE(STAT, SUM, rstds, channel, rstd);
#endif
  }
}

#else
OTR_KERNEL(batch_norm)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(G) * grad, OTR_GLOBAL const OTR_MEMORY(A) * in,
    OTR_GLOBAL const OTR_MEMORY(W) * weight, OTR_GLOBAL const OTR_MEMORY(STAT) * means,
    OTR_GLOBAL const OTR_MEMORY(STAT) * spreads, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    OTR_GLOBAL OTR_MEMORY(GW) * of_weight, OTR_GLOBAL OTR_MEMORY(GB) * of_bias, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 channel = OTR_GROUP_ID(0);
  const SUM count = (SUM)(args.samples * args.places);
  const SUM mean = OTR_LOAD(STAT, SUM, means, channel), spread = OTR_LOAD(STAT, SUM, spreads, channel);
#if TRAINING
  const SUM rstd = spread;
#else
  const SUM rstd = 1 / OTR_CALL(sqrt, SUM)(spread + args.epsilon.value);
#endif
  T factor = 1;
  SUM sum = 0, products = 0;
  (void)weight;
  (void)out;
  (void)of_weight;
  (void)of_bias;
#if WEIGHT
  factor = OTR_LOAD(W, T, weight, channel);
#endif
  for (i64 sample = 0; sample < args.samples; sample++)
    for (i64 place = OTR_LANE; place < args.places; place += OTR_GROUP_SIZE) {
      T x = OTR_LOAD(A, T, in, sample * args.in[0] + channel * args.in[1] + place * args.in[2]);
      T g = OTR_LOAD(G, T, grad, sample * args.grad[0] + channel * args.grad[1] + place * args.grad[2]);
      sum += (SUM)g;
      products += (SUM)g * ((SUM)x - mean) * rstd;
    }
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch);
  products = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT products, scratch);
#if OUT_THERE
  for (i64 sample = 0; sample < args.samples; sample++)
    for (i64 place = OTR_LANE; place < args.places; place += OTR_GROUP_SIZE) {
      T g = OTR_LOAD(G, T, grad, sample * args.grad[0] + channel * args.grad[1] + place * args.grad[2]);
      i64 to = sample * args.out[0] + channel * args.out[1] + place * args.out[2];
#if TRAINING
      T x = OTR_LOAD(A, T, in, sample * args.in[0] + channel * args.in[1] + place * args.in[2]);
      x = (x - (T)mean) * (T)rstd;
      g -= (T)(sum / count) + x * (T)(products / count);
#endif
      OTR_STORE(OUT, T, out, to, g * factor * (T)rstd);
    }
#endif
  (void)count;
  (void)factor;
  if (OTR_LANE == 0) {
#if WEIGHT_OUT
    OTR_STORE(GW, SUM, of_weight, channel, products);
#endif
#if BIAS_OUT
    OTR_STORE(GB, SUM, of_bias, channel, sum);
#endif
  }
}
#endif
