/* Elements that tensors of indices pick together, of a tensor whose other dimensions are walked.
 *
 *   KIND      0: out[p] = in[what is picked at p] (index); 1: out[what is picked at p] becomes in[p] (index_put), or
 *             2: is added in[p]
 *   A, OUT    element types; T the register type
 *   PICKS     how many tensors of indices there are, 1 to 4; I0 to I3 are their element types
 *   CHUNK     elements of a group
 *
 * A negative index counts from the end. One that is not there is not used: kind 0 gives 0, the others nothing. One of them is
 * left in `wrong`: that there is one, the index, and how many there are.
 */
typedef struct {
  i64 count;                         /* elements to be moved */
  i64 rank;
  i64 sizes[8], in[8], out[8];       /* strides by the place p; where indices lead along a dimension, 0 */
  i64 picks[PICKS][8];               /* strides of the indices by the place p */
  i64 limits[PICKS], steps[PICKS];   /* of the dimensions that they lead along */
} arguments_t;

#define PICK(n) \
  { \
    i64 k = (i64)picks##n[place##n]; \
    const i64 limit = args.limits[n], here = k < 0 ? k + limit : k; \
    if (here < 0 || here >= limit) { \
      there = 0; \
      wrong[1] = k; \
      wrong[2] = limit; \
      wrong[0] = 1; \
    } \
    picked += here * args.steps[n]; \
  }

OTR_KERNEL(picked)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    OTR_GLOBAL i64* wrong, OTR_GLOBAL const OTR_MEMORY(I0) * picks0,
#if PICKS > 1
    OTR_GLOBAL const OTR_MEMORY(I1) * picks1,
#endif
#if PICKS > 2
    OTR_GLOBAL const OTR_MEMORY(I2) * picks2,
#endif
#if PICKS > 3
    OTR_GLOBAL const OTR_MEMORY(I3) * picks3,
#endif
    const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    i64 number = at, from = 0, to = 0, picked = 0, place0 = 0;
    i32 there = 1;
#if PICKS > 1
    i64 place1 = 0;
#endif
#if PICKS > 2
    i64 place2 = 0;
#endif
#if PICKS > 3
    i64 place3 = 0;
#endif
    for (i32 d = (i32)args.rank - 1; d >= 0; d--) {
      const i64 rest = number / args.sizes[d], k = number - rest * args.sizes[d];
      number = rest;
      from += k * args.in[d];
      to += k * args.out[d];
      place0 += k * args.picks[0][d];
#if PICKS > 1
      place1 += k * args.picks[1][d];
#endif
#if PICKS > 2
      place2 += k * args.picks[2][d];
#endif
#if PICKS > 3
      place3 += k * args.picks[3][d];
#endif
    }
    PICK(0)
#if PICKS > 1
    PICK(1)
#endif
#if PICKS > 2
    PICK(2)
#endif
#if PICKS > 3
    PICK(3)
#endif
#if KIND == 0
    OTR_STORE(OUT, T, out, to, there ? OTR_LOAD(A, T, in, from + picked) : (T)0);
#elif KIND == 1
    if (there) OTR_STORE(OUT, T, out, to + picked, OTR_LOAD(A, T, in, from));
#else
    if (there) OTR_CALL(atomic_add, OUT)(out + to + picked, OTR_LOAD(A, T, in, from));
#endif
  }
}
