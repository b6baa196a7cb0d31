/* A product with a weight of 8 or 4 bits, whose elements have a scale, and perhaps a zero, for each group of a row.
 *
 *   KIND     0: a group of items has an element of the result for each of up to ROWS rows of the input; 1: the weight as
 *            numbers, CHUNK of them by a group
 *   BITS     8 or 4; of two elements of 4 bits the first is in the low half of a byte
 *   ZEROS    1: there are zeros, and 4 bits are from 0 to 15, else from -8 to 7
 *   A, S, Z, OUT   element types of input, scales, zeros, and of the result or the numbers
 *   T, SUM   the register types of elements and of sums
 */
typedef struct {
  i64 rows, columns, depth, group;
  i64 in[2], weight[2], scale[2], zero[2], out[2];   /* strides of rows and columns */
} arguments_t;

#if BITS == 8
#define WEIGHT_MEMORY i8
#define WEIGHT(row, at) ((T)weight[(row) * args.weight[0] + (at) * args.weight[1]])
#else
#define WEIGHT_MEMORY u8
#define BYTE(row, at) weight[(row) * args.weight[0] + (at) / 2 * args.weight[1]]
#if ZEROS
#define WEIGHT(row, at) ((T)otr_of_u4(BYTE(row, at), (i32)((at) % 2)))
#else
#define WEIGHT(row, at) ((T)otr_of_i4(BYTE(row, at), (i32)((at) % 2)))
#endif
#endif
#define OF_GROUP(X, name, row, at) OTR_LOAD(X, T, name##s, (row) * args.name[0] + (at) / args.group * args.name[1])
#if ZEROS
#define NUMBER(row, at) ((WEIGHT(row, at) - OF_GROUP(Z, zero, row, at)) * OF_GROUP(S, scale, row, at))
#else
#define NUMBER(row, at) (WEIGHT(row, at) * OF_GROUP(S, scale, row, at))
#endif

OTR_KERNEL(quantized)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL const WEIGHT_MEMORY* weight,
    OTR_GLOBAL const OTR_MEMORY(S) * scales, OTR_GLOBAL const OTR_MEMORY(Z) * zeros, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    const arguments_t args) {
  (void)in;
  (void)zeros;
#if KIND == 0
  OTR_SHARED(SUM, scratch, OTR_GROUP_SIZE);
  const i64 column = OTR_GROUP_ID(0) % args.columns, first = OTR_GROUP_ID(0) / args.columns * ROWS;
  const i32 count = (i32)(args.rows - first < ROWS ? args.rows - first : ROWS);
  SUM sums[ROWS];
  for (i32 row = 0; row < ROWS; row++) sums[row] = 0;
  for (i64 at = OTR_LANE; at < args.depth; at += OTR_GROUP_SIZE) {
    const T number = NUMBER(column, at);
    for (i32 row = 0; row < count; row++)
      sums[row] += (SUM)(number * OTR_LOAD(A, T, in, (first + row) * args.in[0] + at * args.in[1]));
  }
  for (i32 row = 0; row < count; row++) {
    const SUM sum = OTR_CALL(group_sum, SUM)(OTR_ITEM_ARGUMENT sums[row], scratch);
    if (OTR_LANE == 0) OTR_STORE(OUT, SUM, out, (first + row) * args.out[0] + column * args.out[1], sum);
  }
#else
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK, all = args.columns * args.depth;
  const i64 end = begin + CHUNK < all ? begin + CHUNK : all;
  for (i64 number = begin + OTR_LANE; number < end; number += OTR_GROUP_SIZE) {
    const i64 column = number / args.depth, at = number - column * args.depth;
    OTR_STORE(OUT, T, out, number, NUMBER(column, at));
  }
#endif
}
