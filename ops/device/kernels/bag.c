/* Bags of rows of a table, put together. A group has a bag; the one behind the last bag has the samples that are in none.
 *
 *   MODE     0 sum, 1 mean, 2 the largest of each column
 *   FACTORS  1: each sample has a factor
 *   A        element type of table, factors and result; I, O, N, S, L of indices, offsets, offset2bag, bag_size, max_indices
 *   T, SUM   the register types of elements and of sums
 *
 * An index that is not there, or a bag that does not lie behind the one before it, does not count. One of them is left in
 * `wrong`: that there is one, the index, and how many there are.
 */
typedef struct {
  i64 bags, offsets_count, samples, rows, columns;
  i64 padding;                              /* an index that does not count */
  i64 numbers_count, sizes_count, largest_count;  /* elements of these outputs, which may be 0 */
  i64 table[2], out[2], largest[2];         /* strides of rows and columns */
  i64 index, offset, factor, number, size;  /* strides */
} arguments_t;

#define OFFSET(at) ((i64)offsets[(at) * args.offset])

OTR_KERNEL(bag)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * table, OTR_GLOBAL const OTR_MEMORY(I) * indices,
    OTR_GLOBAL const OTR_MEMORY(O) * offsets, OTR_GLOBAL const OTR_MEMORY(A) * factors, OTR_GLOBAL OTR_MEMORY(A) * out,
    OTR_GLOBAL OTR_MEMORY(N) * numbers, OTR_GLOBAL OTR_MEMORY(S) * sizes, OTR_GLOBAL OTR_MEMORY(L) * largest,
    OTR_GLOBAL i64* wrong, const arguments_t args) {
  const i64 bag = OTR_GROUP_ID(0);
  i64 begin = args.bags == 0 ? 0 : bag < args.offsets_count ? OFFSET(bag) : args.samples;
  i64 end = bag < args.bags && bag + 1 < args.offsets_count ? OFFSET(bag + 1) : args.samples;
  (void)factors;
  if (begin < 0 || begin > end || end > args.samples || (bag == 0 && args.bags > 0 && begin != 0)) {
    wrong[1] = begin;
    wrong[2] = args.samples;
    wrong[0] = 1;
    begin = end = 0;
  }
  if (args.numbers_count > 0)
    for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) numbers[at * args.number] = (OTR_MEMORY(N))bag;
  if (bag == args.bags) {
    if (OTR_LANE == 0 && args.sizes_count > bag) sizes[bag * args.size] = 0;
    return;
  }
  i64 count = 0;
  for (i64 at = begin; at < end; at++) {
    const i64 row = (i64)indices[at * args.index];
    if (row < 0 || row >= args.rows) {
      wrong[1] = row;
      wrong[2] = args.rows;
      wrong[0] = 1;
    } else if (row != args.padding) {
      count++;
    }
  }
  if (OTR_LANE == 0) {
    if (args.sizes_count > 0) sizes[bag * args.size] = (OTR_MEMORY(S))count;
#if MODE != 2
    if (args.largest_count > 0) largest[bag * args.largest[0]] = 0;
#endif
  }
  for (i64 column = OTR_LANE; column < args.columns; column += OTR_GROUP_SIZE) {
    SUM sum = 0;
    i64 best = -1;
    for (i64 at = begin; at < end; at++) {
      const i64 row = (i64)indices[at * args.index];
      if (row < 0 || row >= args.rows || row == args.padding) continue;
      SUM x = (SUM)OTR_LOAD(A, T, table, row * args.table[0] + column * args.table[1]);
#if FACTORS
      x *= (SUM)OTR_LOAD(A, T, factors, at * args.factor);
#endif
#if MODE == 2
      if (best < 0 || x > sum) {
        sum = x;
        best = row;
      }
#else
      sum += x;
#endif
    }
    (void)best;
#if MODE == 1
    sum /= (SUM)(count > 0 ? count : 1);
#elif MODE == 2
    if (args.largest_count > 0) largest[bag * args.largest[0] + column * args.largest[1]] = (OTR_MEMORY(L))best;
#endif
    OTR_STORE(A, SUM, out, bag * args.out[0] + column * args.out[1], sum);
  }
}
