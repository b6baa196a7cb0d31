/* Reductions. A row is what one result is made of: the reduced dimensions, the innermost apart, which is walked fastest.
 *
 *   KIND            0: a fold, START, TAKE(x), JOIN(a, b), GROUP(x), FINISH(x); 1: an extreme value with its index,
 *                   BETTER(x, y); 2: a variance, FINISH(x)
 *   IN, OUT, OUT2   element types; OUT2 of a second result, where SECOND is 1
 *   T               the register type of elements, for kind 2 that of sums
 *   ACC             the register type of what is folded
 *   DENSE           1: the innermost reduced dimension lies densely
 *   COLUMNS         0: a group has a row. Else a group has so many rows whose elements lie side by side
 *   SUMS            how many results an item has beside each other, of kind 0 without COLUMNS. One is enough where a
 *                   compiler makes several of it
 *   PASS            0: all at once; 1: parts of rows, into a workspace; 2: the parts that lie there
 */
typedef struct {
  i64 rows;
  i64 kept_rank, outer_rank;
  i64 outer, inner, inner_step;           /* how often the innermost dimension is walked, and its size and stride */
  i64 parts, outer_part, inner_part;      /* of a row, and how much of both one has */
  i64 count;                              /* elements of a row */
  i64 kept_sizes[8], kept_in[8], kept_out[8], kept_out2[8];
  i64 outer_sizes[8], outer_strides[8];
  OTR_WORD(ACC) number;
} arguments_t;

#if DENSE
#define STEP 1
#else
#define STEP args.inner_step
#endif

OTR_KERNEL(reduce)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(IN) * in, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    OTR_GLOBAL OTR_MEMORY(OUT2) * out2, const arguments_t args) {
#if KIND != 1
  const ACC s0 = args.number.value;
  (void)s0;
#endif
  const i64 group = OTR_GROUP_ID(0), part = group % args.parts;
  i64 outer_begin = 0, outer_end = args.outer, inner_begin = 0, inner_end = args.inner;
  if (args.outer > 1) {
    outer_begin = part * args.outer_part;
    outer_end = outer_begin + args.outer_part < args.outer ? outer_begin + args.outer_part : args.outer;
  } else {
    inner_begin = part * args.inner_part;
    inner_end = inner_begin + args.inner_part < args.inner ? inner_begin + args.inner_part : args.inner;
  }
  (void)out2;

#if KIND == 0 && COLUMNS == 0
  OTR_SHARED(ACC, scratch, OTR_GROUP_SIZE);
  const i64 row = group / args.parts;
#if PASS == 2
  const i64 from = row * args.inner;
#else
  const i64 from = otr_offset(row, args.kept_sizes, args.kept_in, (i32)args.kept_rank);
#endif
  /* Several sums, so that an addition need not wait for the one before. */
  ACC sums[SUMS];
  for (i32 k = 0; k < SUMS; k++) sums[k] = START;
  for (i64 o = outer_begin; o < outer_end; o++) {
    i64 base = from + otr_offset(o, args.outer_sizes, args.outer_strides, (i32)args.outer_rank);
    i64 r = inner_begin + OTR_LANE;
#if SUMS > 1
    for (; r + (SUMS - 1) * OTR_GROUP_SIZE < inner_end; r += SUMS * OTR_GROUP_SIZE) {
      for (i32 k = 0; k < SUMS; k++) {
        T x = OTR_LOAD(IN, T, in, base + (r + k * OTR_GROUP_SIZE) * STEP);
        sums[k] = JOIN(sums[k], (ACC)TAKE(x));
      }
    }
#endif
    OTR_REORDERED
    for (; r < inner_end; r += OTR_GROUP_SIZE) {
      T x = OTR_LOAD(IN, T, in, base + r * STEP);
      sums[0] = JOIN(sums[0], (ACC)TAKE(x));
    }
  }
  for (i32 width = SUMS / 2; width > 0; width >>= 1)
    for (i32 k = 0; k < width; k++) sums[k] = JOIN(sums[k], sums[k + width]);
  ACC result = GROUP(sums[0]);
  if (OTR_LANE == 0) {
#if PASS == 1
    out[group] = result;
#else
    i64 to = otr_offset(row, args.kept_sizes, args.kept_out, (i32)args.kept_rank);
    OTR_STORE(OUT, ACC, out, to, FINISH(result));
#endif
  }

#elif KIND == 0
#define PER_ITEM (COLUMNS / OTR_GROUP_SIZE)
  const i64 width = args.kept_sizes[args.kept_rank - 1];
  const i64 blocks = (width + COLUMNS - 1) / COLUMNS;
  const i64 block = group / args.parts % blocks, above = group / args.parts / blocks;
  const i64 column = block * COLUMNS;
  const i32 there = (i32)(width - column < COLUMNS ? width - column : COLUMNS);
  const i64 from = otr_offset(above, args.kept_sizes, args.kept_in, (i32)args.kept_rank - 1) + column;
  ACC sums[PER_ITEM];
  for (i32 k = 0; k < PER_ITEM; k++) sums[k] = START;
  for (i64 o = outer_begin; o < outer_end; o++) {
    i64 base = from + otr_offset(o, args.outer_sizes, args.outer_strides, (i32)args.outer_rank);
    for (i64 r = inner_begin; r < inner_end; r++) {
      if (there == COLUMNS) {
        OTR_INDEPENDENT
        for (i32 k = 0; k < PER_ITEM; k++) {
          T x = OTR_LOAD(IN, T, in, base + r * STEP + k * OTR_GROUP_SIZE + OTR_LANE);
          sums[k] = JOIN(sums[k], (ACC)TAKE(x));
        }
      } else {
        for (i32 k = 0; k * OTR_GROUP_SIZE + OTR_LANE < there; k++) {
          T x = OTR_LOAD(IN, T, in, base + r * STEP + k * OTR_GROUP_SIZE + OTR_LANE);
          sums[k] = JOIN(sums[k], (ACC)TAKE(x));
        }
      }
    }
  }
  for (i32 k = 0; k * OTR_GROUP_SIZE + OTR_LANE < there; k++) {
    i64 row = above * width + column + k * OTR_GROUP_SIZE + OTR_LANE;
#if PASS == 1
    out[row * args.parts + part] = sums[k];
#else
    i64 to = otr_offset(row, args.kept_sizes, args.kept_out, (i32)args.kept_rank);
    OTR_STORE(OUT, ACC, out, to, FINISH(sums[k]));
#endif
  }

#elif KIND == 1
  OTR_SHARED(T, values, OTR_GROUP_SIZE);
  OTR_SHARED(i64, places, OTR_GROUP_SIZE);
  const i64 from = otr_offset(group, args.kept_sizes, args.kept_in, (i32)args.kept_rank);
  T best = 0;
  i64 place = -1;
  for (i64 o = 0; o < args.outer; o++) {
    i64 base = from + otr_offset(o, args.outer_sizes, args.outer_strides, (i32)args.outer_rank);
    for (i64 r = OTR_LANE; r < args.inner; r += OTR_GROUP_SIZE) {
      T x = OTR_LOAD(IN, T, in, base + r * STEP);
      if (place < 0 || BETTER(x, best) || (x != x && best == best)) {
        if (!(place >= 0 && best != best)) {
          best = x;
          place = o * args.inner + r;
        }
      }
    }
  }
  values[OTR_LANE] = best;
  places[OTR_LANE] = place;
  OTR_BARRIER();
  for (i32 width = OTR_GROUP_SIZE / 2; width > 0; width >>= 1) {
    if (OTR_LANE < width) {
      T x = values[OTR_LANE + width];
      i64 other = places[OTR_LANE + width];
      best = values[OTR_LANE];
      place = places[OTR_LANE];
      i32 same = x == best || (x != x && best != best);
      i32 wins = same ? other < place : best == best && (x != x || BETTER(x, best));
      if (other >= 0 && (place < 0 || wins)) {
        values[OTR_LANE] = x;
        places[OTR_LANE] = other;
      }
    }
    OTR_BARRIER();
  }
  if (OTR_LANE == 0) {
#if SECOND
    OTR_STORE(OUT, T, out, otr_offset(group, args.kept_sizes, args.kept_out, (i32)args.kept_rank), values[0]);
    out2[otr_offset(group, args.kept_sizes, args.kept_out2, (i32)args.kept_rank)] = places[0];
#else
    out[otr_offset(group, args.kept_sizes, args.kept_out, (i32)args.kept_rank)] = places[0];
#endif
  }

#else
  OTR_SHARED(T, scratch, OTR_GROUP_SIZE);
  const i64 from = otr_offset(group, args.kept_sizes, args.kept_in, (i32)args.kept_rank);
  T sum = 0;
  for (i64 o = 0; o < args.outer; o++) {
    i64 base = from + otr_offset(o, args.outer_sizes, args.outer_strides, (i32)args.outer_rank);
    OTR_REORDERED
    for (i64 r = OTR_LANE; r < args.inner; r += OTR_GROUP_SIZE) sum += OTR_LOAD(IN, T, in, base + r * STEP);
  }
  const T mean = F(group_sum)(OTR_ITEM_ARGUMENT sum, scratch) / (T)args.count;
  T squares = 0;
  for (i64 o = 0; o < args.outer; o++) {
    i64 base = from + otr_offset(o, args.outer_sizes, args.outer_strides, (i32)args.outer_rank);
    OTR_REORDERED
    for (i64 r = OTR_LANE; r < args.inner; r += OTR_GROUP_SIZE) {
      T x = OTR_LOAD(IN, T, in, base + r * STEP) - mean;
      squares += x * x;
    }
  }
  squares = F(group_sum)(OTR_ITEM_ARGUMENT squares, scratch);
  if (OTR_LANE == 0) {
    /* s0 is what the count is corrected by. */
    T rest = (T)args.count - s0;
    T result = squares / (rest > 0 ? rest : (T)0);
    OTR_STORE(OUT, T, out, otr_offset(group, args.kept_sizes, args.kept_out, (i32)args.kept_rank), FINISH(result));
#if SECOND
    OTR_STORE(OUT2, T, out2, otr_offset(group, args.kept_sizes, args.kept_out2, (i32)args.kept_rank), mean);
#endif
  }
#endif
}
