/* Attention and its gradients. Scores are never held for more than a block of keys (or queries) at a time.
 *
 *   KIND     0 forward, a group has a query; 1 for each query the product of output and gradient, into a workspace; 2 the
 *            gradient of a query; 3 the gradients of a key and its value; 4 the gradient of a mask, CHUNK elements by a group
 *   A, STAT, M  element types of operands, of logsumexp, and of the mask; OF_MASK that of its gradient
 *   MASK     0 none, 1 what is true is seen, 2 it is added to the scores
 *   D, E     elements of a query or key, and of a value
 *   BLOCK    of keys or queries
 *   T, SUM   the register types of elements and of sums
 */
typedef struct {
  i64 samples, heads, groups, queries, keys;
  i64 causal;
  i64 query[4], key[4], value[4], out[4], grad[4], mask[4], sums[3];  /* strides */
  i64 of_query[4], of_key[4], of_value[4];
  i64 seed, offset;
  OTR_WORD(T) scale, dropout;
#if KIND == 4
  i64 sizes[4], of_mask[4];           /* of the mask, 1 where it is broadcast, and the strides of its gradient */
#endif
} arguments_t;

#define OWN(n) ((n + OTR_GROUP_SIZE - 1) / OTR_GROUP_SIZE)

/* Several sums, so that an addition need not wait for the one before. */
#define DOT(result, count, left, right) \
  do { \
    T parts[8] = {0, 0, 0, 0, 0, 0, 0, 0}; \
    i32 c = 0; \
    for (; c + 8 <= count; c += 8) \
      for (i32 p = 0; p < 8; p++) parts[p] = F(fma)(left(c + p), right(c + p), parts[p]); \
    for (; c < count; c++) parts[0] = F(fma)(left(c), right(c), parts[0]); \
    result = ((parts[0] + parts[4]) + (parts[1] + parts[5])) + ((parts[2] + parts[6]) + (parts[3] + parts[7])); \
  } while (0)

/* The factor by which dropout changes a weight. */
OTR_FUNCTION T otr_kept(const arguments_t* args, i64 sample, i64 head, i64 query, i64 key) {
  const T dropout = args->dropout.value;
  if (dropout == 0) return 1;
  i64 number = ((sample * args->heads + head) * args->queries + query) * args->keys + key;
  T drawn = (T)otr_uniform_f32((u64)args->seed, (u64)args->offset, (u64)number);
  return drawn < dropout ? (T)0 : 1 / (1 - dropout);
}

#if MASK
#define MASK_TYPE M
#define MASKED(score, sample, head, query, key) \
  do { \
    i64 place = (sample) * args.mask[0] + (head) * args.mask[1] + (query) * args.mask[2] + (key) * args.mask[3]; \
    T seen = OTR_LOAD(M, T, mask, place); \
    score = MASK == 2 ? score + seen : seen != 0 ? score : (T)(-OTR_INFINITY_F32); \
  } while (0)
#else
#define MASK_TYPE A
#define MASKED(score, sample, head, query, key) (void)mask
#endif

#if KIND < 3
/* The group's query. */
#define ROW \
  const i64 row = OTR_GROUP_ID(0), query = row % args.queries, head = row / args.queries % args.heads; \
  const i64 sample = row / args.queries / args.heads, group = head / (args.heads / args.groups); \
  const i64 last = args.causal && query + 1 < args.keys ? query + 1 : args.keys
#endif

#if KIND == 0
OTR_KERNEL(attention)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * queries, OTR_GLOBAL const OTR_MEMORY(A) * keys,
    OTR_GLOBAL const OTR_MEMORY(A) * values, OTR_GLOBAL const OTR_MEMORY(MASK_TYPE) * mask,
    OTR_GLOBAL OTR_MEMORY(A) * out,
    OTR_GLOBAL OTR_MEMORY(STAT) * sums, const arguments_t args) {
  OTR_SHARED(T, q, D);
  OTR_SHARED(T, weights, BLOCK);
  OTR_SHARED(T, scratch, OTR_GROUP_SIZE);
  OTR_SHARED(SUM, scratch_of_sums, OTR_GROUP_SIZE);
  ROW;
  const i64 from_q = sample * args.query[0] + head * args.query[1] + query * args.query[2];
  const i64 from_k = sample * args.key[0] + group * args.key[1], from_v = sample * args.value[0] + group * args.value[1];
  T own[OWN(E)];
  for (i32 e = 0; e < OWN(E); e++) own[e] = 0;
  for (i32 c = OTR_LANE; c < D; c += OTR_GROUP_SIZE)
    q[c] = OTR_LOAD(A, T, queries, from_q + c * args.query[3]) * args.scale.value;
  OTR_BARRIER();
  T most = (T)(-OTR_INFINITY_F32);
  SUM total = 0;
  for (i64 begin = 0; begin < last; begin += BLOCK) {
    const i32 count = (i32)(last - begin < BLOCK ? last - begin : BLOCK);
    T top = (T)(-OTR_INFINITY_F32);
    for (i32 j = OTR_LANE; j < count; j += OTR_GROUP_SIZE) {
      const i64 from = from_k + (begin + j) * args.key[2];
      T score;
#define LEFT(c) q[c]
#define RIGHT(c) OTR_LOAD(A, T, keys, from + (c) * args.key[3])
      DOT(score, D, LEFT, RIGHT);
      MASKED(score, sample, head, query, begin + j);
      weights[j] = score;
      top = F(max)(top, score);
    }
    top = F(max)(most, F(group_max)(OTR_ITEM_ARGUMENT top, scratch));
    if (top == (T)(-OTR_INFINITY_F32)) continue;
    const T shrink = F(exp)(most - top);
    most = top;
    SUM sum = 0;
    for (i32 j = OTR_LANE; j < count; j += OTR_GROUP_SIZE) {
      T weight = F(exp)(weights[j] - most);
      sum += (SUM)weight;
      weights[j] = weight * otr_kept(&args, sample, head, query, begin + j);
    }
    total = total * (SUM)shrink + OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch_of_sums);
    for (i32 e = 0; e < OWN(E); e++) own[e] *= shrink;
    for (i32 j = 0; j < count; j++) {
      const i64 from = from_v + (begin + j) * args.value[2];
      const T weight = weights[j];
      for (i32 e = 0; e < OWN(E); e++) {
        const i32 place = e * OTR_GROUP_SIZE + OTR_LANE;
        if (place < E) own[e] = F(fma)(weight, OTR_LOAD(A, T, values, from + place * args.value[3]), own[e]);
      }
    }
    OTR_BARRIER();
  }
  const i64 to = sample * args.out[0] + head * args.out[1] + query * args.out[2];
  const T factor = total == 0 ? (T)0 : (T)(1 / total);
  for (i32 e = 0; e < OWN(E); e++) {
    const i32 place = e * OTR_GROUP_SIZE + OTR_LANE;
    if (place < E) OTR_STORE(A, T, out, to + place * args.out[3], own[e] * factor);
  }
  if (OTR_LANE == 0) {
    SUM result = total == 0 ? (SUM)(-OTR_INFINITY_F32) : (SUM)most + OTR_CALL(log, SUM)(total);
    OTR_STORE(STAT, SUM, sums, sample * args.sums[0] + head * args.sums[1] + query * args.sums[2], result);
  }
}

#elif KIND == 1
OTR_KERNEL(attention)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * grads, OTR_GLOBAL const OTR_MEMORY(A) * outs,
    OTR_GLOBAL T * products, const arguments_t args) {
  OTR_SHARED(T, scratch, OTR_GROUP_SIZE);
  ROW;
  const i64 from = sample * args.out[0] + head * args.out[1] + query * args.out[2];
  const i64 from_g = sample * args.grad[0] + head * args.grad[1] + query * args.grad[2];
  T product = 0;
  (void)group;
  (void)last;
  for (i32 e = OTR_LANE; e < E; e += OTR_GROUP_SIZE)
    product += OTR_LOAD(A, T, outs, from + e * args.out[3]) * OTR_LOAD(A, T, grads, from_g + e * args.grad[3]);
  product = F(group_sum)(OTR_ITEM_ARGUMENT product, scratch);
  if (OTR_LANE == 0) products[row] = product;
}

#elif KIND == 2
OTR_KERNEL(attention)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * queries, OTR_GLOBAL const OTR_MEMORY(A) * keys,
    OTR_GLOBAL const OTR_MEMORY(A) * values, OTR_GLOBAL const OTR_MEMORY(MASK_TYPE) * mask,
    OTR_GLOBAL const OTR_MEMORY(A) * grads,
    OTR_GLOBAL const OTR_MEMORY(STAT) * sums, OTR_GLOBAL const T* products, OTR_GLOBAL OTR_MEMORY(A) * out,
    const arguments_t args) {
  OTR_SHARED(T, q, D);
  OTR_SHARED(T, g, E);
  OTR_SHARED(T, weights, BLOCK);
  ROW;
  const i64 from_q = sample * args.query[0] + head * args.query[1] + query * args.query[2];
  const i64 from_g = sample * args.grad[0] + head * args.grad[1] + query * args.grad[2];
  const i64 from_k = sample * args.key[0] + group * args.key[1], from_v = sample * args.value[0] + group * args.value[1];
  const T total = OTR_LOAD(STAT, T, sums, sample * args.sums[0] + head * args.sums[1] + query * args.sums[2]);
  const T product = products[row];
  T own[OWN(D)];
  for (i32 c = 0; c < OWN(D); c++) own[c] = 0;
  for (i32 c = OTR_LANE; c < D; c += OTR_GROUP_SIZE) q[c] = OTR_LOAD(A, T, queries, from_q + c * args.query[3]);
  for (i32 e = OTR_LANE; e < E; e += OTR_GROUP_SIZE) g[e] = OTR_LOAD(A, T, grads, from_g + e * args.grad[3]);
  OTR_BARRIER();
  if (total != (T)(-OTR_INFINITY_F32)) {
    for (i64 begin = 0; begin < last; begin += BLOCK) {
      const i32 count = (i32)(last - begin < BLOCK ? last - begin : BLOCK);
      for (i32 j = OTR_LANE; j < count; j += OTR_GROUP_SIZE) {
        const i64 from = from_k + (begin + j) * args.key[2], value = from_v + (begin + j) * args.value[2];
        T score, of_weight;
#define LEFT(c) q[c]
#define RIGHT(c) OTR_LOAD(A, T, keys, from + (c) * args.key[3])
#define GRAD(c) g[c]
#define VALUE(c) OTR_LOAD(A, T, values, value + (c) * args.value[3])
        DOT(score, D, LEFT, RIGHT);
        score *= args.scale.value;
        MASKED(score, sample, head, query, begin + j);
        DOT(of_weight, E, GRAD, VALUE);
        of_weight *= otr_kept(&args, sample, head, query, begin + j);
        weights[j] = F(exp)(score - total) * (of_weight - product) * args.scale.value;
      }
      OTR_BARRIER();
      for (i32 j = 0; j < count; j++) {
        const i64 from = from_k + (begin + j) * args.key[2];
        const T weight = weights[j];
        for (i32 c = 0; c < OWN(D); c++) {
          const i32 place = c * OTR_GROUP_SIZE + OTR_LANE;
          if (place < D) own[c] = F(fma)(weight, OTR_LOAD(A, T, keys, from + place * args.key[3]), own[c]);
        }
      }
      OTR_BARRIER();
    }
  }
  const i64 to = sample * args.of_query[0] + head * args.of_query[1] + query * args.of_query[2];
  for (i32 c = 0; c < OWN(D); c++) {
    const i32 place = c * OTR_GROUP_SIZE + OTR_LANE;
    if (place < D) OTR_STORE(A, T, out, to + place * args.of_query[3], own[c]);
  }
}

#elif KIND == 3
OTR_KERNEL(attention)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * queries, OTR_GLOBAL const OTR_MEMORY(A) * keys,
    OTR_GLOBAL const OTR_MEMORY(A) * values, OTR_GLOBAL const OTR_MEMORY(MASK_TYPE) * mask,
    OTR_GLOBAL const OTR_MEMORY(A) * grads,
    OTR_GLOBAL const OTR_MEMORY(STAT) * sums, OTR_GLOBAL const T* products, OTR_GLOBAL OTR_MEMORY(A) * of_keys,
    OTR_GLOBAL OTR_MEMORY(A) * of_values, const arguments_t args) {
  OTR_SHARED(T, k, D);
  OTR_SHARED(T, v, E);
  OTR_SHARED(T, weights, BLOCK);
  OTR_SHARED(T, of_scores, BLOCK);
  const i64 row = OTR_GROUP_ID(0), key = row % args.keys, group = row / args.keys % args.groups;
  const i64 sample = row / args.keys / args.groups, heads = args.heads / args.groups;
  const i64 from_k = sample * args.key[0] + group * args.key[1] + key * args.key[2];
  const i64 from_v = sample * args.value[0] + group * args.value[1] + key * args.value[2];
  T own_k[OWN(D)], own_v[OWN(E)];
  for (i32 c = 0; c < OWN(D); c++) own_k[c] = 0;
  for (i32 e = 0; e < OWN(E); e++) own_v[e] = 0;
  for (i32 c = OTR_LANE; c < D; c += OTR_GROUP_SIZE) k[c] = OTR_LOAD(A, T, keys, from_k + c * args.key[3]);
  for (i32 e = OTR_LANE; e < E; e += OTR_GROUP_SIZE) v[e] = OTR_LOAD(A, T, values, from_v + e * args.value[3]);
  OTR_BARRIER();
  for (i64 head = group * heads; head < (group + 1) * heads; head++) {
    const i64 from_q = sample * args.query[0] + head * args.query[1];
    const i64 from_g = sample * args.grad[0] + head * args.grad[1];
    for (i64 begin = args.causal ? key : 0; begin < args.queries; begin += BLOCK) {
      const i32 count = (i32)(args.queries - begin < BLOCK ? args.queries - begin : BLOCK);
      for (i32 j = OTR_LANE; j < count; j += OTR_GROUP_SIZE) {
        const i64 query = begin + j, from = from_q + query * args.query[2], grad = from_g + query * args.grad[2];
        const T total = OTR_LOAD(STAT, T, sums, sample * args.sums[0] + head * args.sums[1] + query * args.sums[2]);
        T score, of_weight, weight = 0, of_score = 0;
        if (total != (T)(-OTR_INFINITY_F32)) {
#define LEFT(c) k[c]
#define RIGHT(c) OTR_LOAD(A, T, queries, from + (c) * args.query[3])
#define VALUE(c) v[c]
#define GRAD(c) OTR_LOAD(A, T, grads, grad + (c) * args.grad[3])
          DOT(score, D, LEFT, RIGHT);
          score *= args.scale.value;
          MASKED(score, sample, head, query, key);
          DOT(of_weight, E, VALUE, GRAD);
          const T kept = otr_kept(&args, sample, head, query, key);
          weight = F(exp)(score - total);
          of_score = weight * (of_weight * kept - products[(sample * args.heads + head) * args.queries + query]) *
                     args.scale.value;
          weight *= kept;
        }
        weights[j] = weight;
        of_scores[j] = of_score;
      }
      OTR_BARRIER();
      for (i32 j = 0; j < count; j++) {
        const i64 from = from_q + (begin + j) * args.query[2], grad = from_g + (begin + j) * args.grad[2];
        const T weight = weights[j], of_score = of_scores[j];
        for (i32 c = 0; c < OWN(D); c++) {
          const i32 place = c * OTR_GROUP_SIZE + OTR_LANE;
          if (place < D) own_k[c] = F(fma)(of_score, OTR_LOAD(A, T, queries, from + place * args.query[3]), own_k[c]);
        }
        for (i32 e = 0; e < OWN(E); e++) {
          const i32 place = e * OTR_GROUP_SIZE + OTR_LANE;
          if (place < E) own_v[e] = F(fma)(weight, OTR_LOAD(A, T, grads, grad + place * args.grad[3]), own_v[e]);
        }
      }
      OTR_BARRIER();
    }
  }
  const i64 to_k = sample * args.of_key[0] + group * args.of_key[1] + key * args.of_key[2];
  const i64 to_v = sample * args.of_value[0] + group * args.of_value[1] + key * args.of_value[2];
#if OF_KEY
  for (i32 c = 0; c < OWN(D); c++) {
    const i32 place = c * OTR_GROUP_SIZE + OTR_LANE;
    if (place < D) OTR_STORE(A, T, of_keys, to_k + place * args.of_key[3], own_k[c]);
  }
#endif
#if OF_VALUE
  for (i32 e = 0; e < OWN(E); e++) {
    const i32 place = e * OTR_GROUP_SIZE + OTR_LANE;
    if (place < E) OTR_STORE(A, T, of_values, to_v + place * args.of_value[3], own_v[e]);
  }
#endif
  (void)of_keys;
  (void)of_values;
  (void)to_k;
  (void)to_v;
}

#else
/* The places of dimension d that an element of the mask stands for. */
#define EACH(name, d, count) \
  for (i64 name = args.sizes[d] == 1 ? 0 : place[d]; name < (args.sizes[d] == 1 ? (count) : place[d] + 1); name++)

OTR_KERNEL(attention)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * queries, OTR_GLOBAL const OTR_MEMORY(A) * keys,
    OTR_GLOBAL const OTR_MEMORY(A) * values, OTR_GLOBAL const OTR_MEMORY(MASK_TYPE) * mask,
    OTR_GLOBAL const OTR_MEMORY(A) * grads,
    OTR_GLOBAL const OTR_MEMORY(STAT) * sums, OTR_GLOBAL const T* products, OTR_GLOBAL OTR_MEMORY(OF_MASK) * of_mask,
    const arguments_t args) {
  const i64 all = args.sizes[0] * args.sizes[1] * args.sizes[2] * args.sizes[3];
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK, end = begin + CHUNK < all ? begin + CHUNK : all;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    i64 place[4], rest = at, to = 0;
    SUM sum = 0;
    for (i32 d = 3; d >= 0; d--) {
      place[d] = rest % args.sizes[d];
      rest /= args.sizes[d];
      to += place[d] * args.of_mask[d];
    }
    EACH(sample, 0, args.samples) EACH(head, 1, args.heads) EACH(query, 2, args.queries) EACH(key, 3, args.keys) {
      const i64 group = head / (args.heads / args.groups);
      const i64 q = sample * args.query[0] + head * args.query[1] + query * args.query[2];
      const i64 k = sample * args.key[0] + group * args.key[1] + key * args.key[2];
      const i64 v = sample * args.value[0] + group * args.value[1] + key * args.value[2];
      const i64 grad = sample * args.grad[0] + head * args.grad[1] + query * args.grad[2];
      const T total = OTR_LOAD(STAT, T, sums, sample * args.sums[0] + head * args.sums[1] + query * args.sums[2]);
      T score, of_weight;
      if ((args.causal && key > query) || total == (T)(-OTR_INFINITY_F32)) continue;
#define LEFT(c) OTR_LOAD(A, T, queries, q + (c) * args.query[3])
#define RIGHT(c) OTR_LOAD(A, T, keys, k + (c) * args.key[3])
#define VALUE(c) OTR_LOAD(A, T, values, v + (c) * args.value[3])
#define GRAD(c) OTR_LOAD(A, T, grads, grad + (c) * args.grad[3])
      DOT(score, D, LEFT, RIGHT);
      score *= args.scale.value;
      MASKED(score, sample, head, query, key);
      DOT(of_weight, E, VALUE, GRAD);
      of_weight *= otr_kept(&args, sample, head, query, key);
      const T product = products[(sample * args.heads + head) * args.queries + query];
      sum += (SUM)(F(exp)(score - total) * (of_weight - product));
    }
    OTR_STORE(OF_MASK, SUM, of_mask, to, sum);
  }
}
#endif
