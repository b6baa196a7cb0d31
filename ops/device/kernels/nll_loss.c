/* The negative logarithm of the likelihood of classes, and its gradient.
 *
 *   KIND     0 forward, by one group; 1 the gradient, whose elements are shared among groups, CHUNK each
 *   A        element type of the scores or of their gradient, W of the weights, L of the loss or its gradient, Z of the
 *            total weight
 *   WEIGHT   1: classes have weights
 *   T, SUM   the register types of elements and of sums
 *
 * A class that does not exist is left in `wrong`: that there is one, the class, and how many there are.
 */
typedef struct {
  i64 items, classes;
  i64 score_item, score_class, target, weight, loss; /* strides */
  i64 ignored, reduction;
} arguments_t;

#if WEIGHT
#define WEIGHT_OF(k) OTR_LOAD(W, T, weights, (k) * args.weight)
#else
#define WEIGHT_OF(k) ((T)1)
#endif

#if KIND == 0
OTR_KERNEL(nll_loss)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * scores, OTR_GLOBAL const i64* targets,
    OTR_GLOBAL const OTR_MEMORY(W) * weights, OTR_GLOBAL OTR_MEMORY(L) * loss, OTR_GLOBAL OTR_MEMORY(Z) * total,
    OTR_GLOBAL i64* wrong, const arguments_t args) {
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  SUM sum = 0, of_weights = 0;
  (void)weights;
  for (i64 item = OTR_LANE; item < args.items; item += OTR_GROUP_SIZE) {
    i64 k = targets[item * args.target];
    T value = 0;
    if (k != args.ignored) {
      /* A class that does not exist is not read. */
      i32 there = k >= 0 && k < args.classes;
      if (!there) {
        wrong[1] = k;
        wrong[2] = args.classes;
        wrong[0] = 1;
      }
      T weight = there ? WEIGHT_OF(k) : (T)OTR_NAN_F32;
      T score = there ? OTR_LOAD(A, T, scores, item * args.score_item + k * args.score_class) : (T)0;
      value = -weight * score;
      of_weights += (SUM)weight;
    }
    if (args.reduction == 0) OTR_STORE(L, T, loss, item * args.loss, value);
    sum += (SUM)value;
  }
  sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sum, scratch);
  of_weights = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT of_weights, scratch);
  if (OTR_LANE == 0) {
    if (args.reduction == 1) OTR_STORE(L, SUM, loss, 0, sum / of_weights);
    if (args.reduction == 2) OTR_STORE(L, SUM, loss, 0, sum);
    OTR_STORE(Z, SUM, total, 0, args.reduction == 0 ? (SUM)0 : of_weights);
  }
}
#else
OTR_KERNEL(nll_loss)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(L) * grads, OTR_GLOBAL const i64* targets,
    OTR_GLOBAL const OTR_MEMORY(W) * weights, OTR_GLOBAL const OTR_MEMORY(Z) * total, OTR_GLOBAL OTR_MEMORY(A) * out,
    OTR_GLOBAL i64* wrong, const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK, all = args.items * args.classes;
  const i64 end = begin + CHUNK < all ? begin + CHUNK : all;
  (void)weights;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    i64 item = at / args.classes, k = at - item * args.classes, target = targets[item * args.target];
    T value = 0;
    if (target != args.ignored && (target < 0 || target >= args.classes)) {
      wrong[1] = target;
      wrong[2] = args.classes;
      wrong[0] = 1;
    }
    if (k == target && target != args.ignored) {
      value = -WEIGHT_OF(k) * OTR_LOAD(L, T, grads, args.reduction == 0 ? item * args.loss : 0);
      if (args.reduction == 1) value /= OTR_LOAD(Z, T, total, 0);
    }
    OTR_STORE(A, T, out, item * args.score_item + k * args.score_class, value);
  }
}
#endif
