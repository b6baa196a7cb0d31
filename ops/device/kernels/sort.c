/* Order along a dimension. What is sorted are pairs: a key, which is an integer in the order of the elements with NaN as the
 * largest, and the element's number in its line. Equal keys stay in order.
 *
 *   KIND        0: a group sorts up to TILE pairs of a line; 1: runs of pairs are merged by two; 2: pairs become results
 *   FIRST       kind 0: 1: pairs are made of elements, else they lie in the workspace
 *   LAST        kind 0: 1: the pairs become results, else the first ones of each tile go to the workspace
 *   A, T        the element type, its register type; FLOATS is 1 if that is f32 or f64
 *   K           the type of keys, u32 or u64
 *   DESCENDING  1: the largest element is the first
 *   VALUES      1: results are elements and numbers, else numbers alone
 *   TILE        a power of two; in kinds 1 and 2 what a group writes
 *   PART        what an item writes of it at a time, a power of two
 */
typedef struct {
  i64 rank;                           /* of the other dimensions */
  i64 n;                              /* pairs of a line */
  i64 tiles;                          /* of a line */
  i64 kept, line;                     /* pairs that are kept of each tile, and of each line */
  i64 width;                          /* of a sorted run, kind 1 */
  i64 in_step, value_step, index_step;
  i64 sizes[8], in[8], values[8], indices[8];
} arguments_t;

#if FLOATS
#define SIGN (sizeof(K) * 8 - 1)
OTR_FUNCTION K otr_key(T x) {
  /* The sum makes one zero of both. The larger the bits of a negative number, the smaller it is. */
  const K bits = F(bits)(x + 0);
  const K key = x != x ? ~(K)0 : bits >> SIGN ? ~bits : bits | (K)1 << SIGN;
#else
OTR_FUNCTION K otr_key(T x) {
  const K key = (K)x ^ (K)1 << (sizeof(K) * 8 - 1);
#endif
  return DESCENDING ? ~key : key;
}

/* Merges two sorted runs, begin to middle and middle to end, and writes the pairs from the place `at` of the result on. */
#define MERGE(SPACE, name) \
  OTR_FUNCTION void name(SPACE const K* keys, SPACE const i32* numbers, i64 begin, i64 middle, i64 end, \
      SPACE K* to_keys, SPACE i32* to_numbers, i64 at, i64 last) { \
    const i64 before = at - begin; \
    i64 low = before > end - middle ? before - (end - middle) : 0; \
    i64 high = before < middle - begin ? before : middle - begin; \
    /* So many of the pairs in front are of the first run. */ \
    while (low < high) { \
      const i64 guess = low + (high - low) / 2; \
      if (keys[begin + guess] <= keys[middle + before - guess - 1]) low = guess + 1; \
      else high = guess; \
    } \
    i64 one = begin + low, other = middle + before - low; \
    for (; at < last; at++) { \
      const i64 from = other >= end || (one < middle && keys[one] <= keys[other]) ? one++ : other++; \
      to_keys[at] = keys[from]; \
      to_numbers[at] = numbers[from]; \
    } \
  }

#if KIND == 0
MERGE(OTR_LOCAL, otr_merge)
#define RUN 8
#elif KIND == 1
MERGE(OTR_GLOBAL, otr_merge)
#endif

OTR_KERNEL(sort)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL OTR_MEMORY(A) * values,
    OTR_GLOBAL i64* indices, OTR_GLOBAL const K* keys, OTR_GLOBAL const i32* numbers, OTR_GLOBAL K* to_keys,
    OTR_GLOBAL i32* to_numbers, const arguments_t args) {
  const i64 line = OTR_GROUP_ID(0) / args.tiles, tile = OTR_GROUP_ID(0) % args.tiles;
  const i64 begin = tile * TILE, end = begin + TILE < args.n ? begin + TILE : args.n;
  const i64 from = otr_offset(line, args.sizes, args.in, (i32)args.rank);
  const i64 to_value = otr_offset(line, args.sizes, args.values, (i32)args.rank);
  const i64 to_index = otr_offset(line, args.sizes, args.indices, (i32)args.rank);
  (void)in;
  (void)values;
  (void)indices;
  (void)keys;
  (void)numbers;
  (void)to_keys;
  (void)to_numbers;
  (void)from;
  (void)to_value;
  (void)to_index;
#if KIND == 0
  OTR_SHARED(K, keys_a, TILE);
  OTR_SHARED(K, keys_b, TILE);
  OTR_SHARED(i32, numbers_a, TILE);
  OTR_SHARED(i32, numbers_b, TILE);
  OTR_LOCAL K *here = keys_a, *there = keys_b;
  OTR_LOCAL i32 *numbers_here = numbers_a, *numbers_there = numbers_b;
  const i32 count = (i32)(end - begin);
  for (i32 at = OTR_LANE; at < count; at += OTR_GROUP_SIZE) {
#if FIRST
    here[at] = otr_key(OTR_LOAD(A, T, in, from + (begin + at) * args.in_step));
    numbers_here[at] = (i32)(begin + at);
#else
    here[at] = keys[line * args.n + begin + at];
    numbers_here[at] = numbers[line * args.n + begin + at];
#endif
  }
  OTR_BARRIER();
  for (i32 run = OTR_LANE * RUN; run < count; run += OTR_GROUP_SIZE * RUN) {
    const i32 last = run + RUN < count ? run + RUN : count;
    for (i32 at = run + 1; at < last; at++) {
      const K key = here[at];
      const i32 number = numbers_here[at];
      i32 place = at;
      for (; place > run && here[place - 1] > key; place--) {
        here[place] = here[place - 1];
        numbers_here[place] = numbers_here[place - 1];
      }
      here[place] = key;
      numbers_here[place] = number;
    }
  }
  OTR_BARRIER();
  for (i32 width = RUN; width < count; width *= 2) {
    for (i32 at = OTR_LANE * RUN; at < count; at += OTR_GROUP_SIZE * RUN) {
      const i32 first = at / (2 * width) * (2 * width);
      const i32 middle = first + width < count ? first + width : count;
      const i32 last = first + 2 * width < count ? first + 2 * width : count;
      otr_merge(here, numbers_here, first, middle, last, there, numbers_there, at,
          at + RUN < count ? at + RUN : count);
    }
    OTR_BARRIER();
    OTR_LOCAL K* keys_swapped = here;
    here = there;
    there = keys_swapped;
    OTR_LOCAL i32* numbers_swapped = numbers_here;
    numbers_here = numbers_there;
    numbers_there = numbers_swapped;
  }
  for (i32 at = OTR_LANE; at < count && at < args.kept; at += OTR_GROUP_SIZE) {
#if LAST
    const i64 number = numbers_here[at];
#if VALUES
    OTR_STORE(A, T, values, to_value + at * args.value_step, OTR_LOAD(A, T, in, from + number * args.in_step));
#endif
    indices[to_index + at * args.index_step] = number;
#else
    to_keys[line * args.line + tile * args.kept + at] = here[at];
    to_numbers[line * args.line + tile * args.kept + at] = numbers_here[at];
#endif
  }

#elif KIND == 1
  const i64 start = line * args.n;
  for (i64 at = begin + (i64)OTR_LANE * PART; at < end; at += OTR_GROUP_SIZE * PART) {
    const i64 first = at / (2 * args.width) * (2 * args.width);
    const i64 middle = first + args.width < args.n ? first + args.width : args.n;
    const i64 last = first + 2 * args.width < args.n ? first + 2 * args.width : args.n;
    otr_merge(keys + start, numbers + start, first, middle, last, to_keys + start, to_numbers + start, at,
        at + PART < end ? at + PART : end);
  }

#else
  for (i64 at = begin + OTR_LANE; at < end && at < args.kept; at += OTR_GROUP_SIZE) {
    const i64 number = numbers[line * args.n + at];
#if VALUES
    OTR_STORE(A, T, values, to_value + at * args.value_step, OTR_LOAD(A, T, in, from + number * args.in_step));
#endif
    indices[to_index + at * args.index_step] = number;
  }
#endif
}
