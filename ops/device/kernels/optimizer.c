/* A step of an optimizer: parameter and state are updated in place, element by element, and lie alike.
 *
 *   KIND        0 SGD, 1 Adam
 *   P, G        element types of parameter and gradient; M, V, X of the state: buffer or first moment, second
 *               moment, its maximum; S of the step
 *   MOMENTUM    in kind 0: there is a buffer. In kind 1 MAXIMUM: there is a maximum, STEP: the step is a tensor
 *   T           the register type
 *   CHUNK       elements of a group
 */
typedef struct {
  i64 count;
  OTR_WORD(T) numbers[12];
} arguments_t;

OTR_KERNEL(optimizer)(OTR_ITEM OTR_GLOBAL OTR_MEMORY(P) * param, OTR_GLOBAL const OTR_MEMORY(G) * grads,
    OTR_GLOBAL OTR_MEMORY(M) * first, OTR_GLOBAL OTR_MEMORY(V) * second, OTR_GLOBAL OTR_MEMORY(X) * most,
    OTR_GLOBAL const OTR_MEMORY(S) * step, const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  (void)first;
  (void)second;
  (void)most;
  (void)step;
#if KIND == 0
  const T rate = args.numbers[0].value, momentum = args.numbers[1].value, take = args.numbers[2].value;
  const T keep = args.numbers[3].value, decay = args.numbers[4].value, nesterov = args.numbers[5].value;
  const T sign = args.numbers[6].value;
  (void)momentum;
  (void)take;
  (void)keep;
  (void)nesterov;
  OTR_INDEPENDENT
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    T p = OTR_LOAD(P, T, param, at), g = sign * OTR_LOAD(G, T, grads, at) + decay * p;
#if MOMENTUM
    /* A buffer that was never written may hold anything, even NaN. */
    T kept = keep == 0 ? (T)0 : keep * OTR_LOAD(M, T, first, at);
    T m = take * g + kept;
    OTR_STORE(M, T, first, at, m);
    g = nesterov != 0 ? momentum * m + g : m;
#endif
    OTR_STORE(P, T, param, at, p - rate * g);
  }
#else
  const T beta1 = args.numbers[0].value, beta2 = args.numbers[1].value;
  const T less1 = args.numbers[2].value, less2 = args.numbers[3].value;
  const T epsilon = args.numbers[4].value, decay = args.numbers[5].value, shrink = args.numbers[6].value;
  const T sign = args.numbers[7].value;
#if STEP
  /* 1 - beta^n, from the logarithms of both, so that nothing is lost where n is small. */
  const T n = OTR_LOAD(S, T, step, 0);
  const T size = args.numbers[10].value / -F(expm1)(n * args.numbers[8].value);
  const T root = F(sqrt)(-F(expm1)(n * args.numbers[9].value));
#else
  const T size = args.numbers[8].value, root = args.numbers[9].value;
#endif
  OTR_INDEPENDENT
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    T p = OTR_LOAD(P, T, param, at) * shrink, g = sign * OTR_LOAD(G, T, grads, at) + decay * p;
    T m = beta1 * OTR_LOAD(M, T, first, at) + less1 * g, v = beta2 * OTR_LOAD(V, T, second, at) + less2 * g * g;
    OTR_STORE(M, T, first, at, m);
    OTR_STORE(V, T, second, at, v);
#if MAXIMUM
    T x = OTR_LOAD(X, T, most, at);
    v = v > x ? v : x;
    OTR_STORE(X, T, most, at, v);
#endif
    OTR_STORE(P, T, param, at, p - size * m / (F(sqrt)(v) / root + epsilon));
  }
#endif
}
