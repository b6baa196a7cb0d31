/* Elements by their index along a dimension. Elements are moved as they are, except where they are added.
 *
 *   KIND      0: out[p] = in[p, with the index at p in the place of one dimension] (gather, index_select, embedding);
 *             1: out[p, with the index ...] is added in[p] (embedding_dense_backward, scatter_add, index_add);
 *             2: out[p, with the index ...] becomes in[p] (scatter, index_copy), 3: a number (index_fill, scatter of one);
 *             4: out[p, with the index ...] is joined with in[p] by JOIN(a, b) (scatter_reduce), 5: is counted up
 *   A, OUT    element types; I of the index
 *   T         the register type; in kind 4 the element type of `out` too, and U the integer of its bits
 *   FROM_END  1: a negative index counts from the end
 *   CHUNK     elements of a group
 *
 * An index that is not there is not used: kind 0 gives 0, the others nothing. One of them is left in `wrong`: that there
 * is one, the index, and how many there are.
 */
typedef struct {
  i64 count;                /* elements to be moved */
  i64 rank;
  i64 limit, step;          /* the indices that there are, and how far they lie apart */
  i64 ignored;              /* an index that does not count */
  i64 sizes[8];
  i64 index[8], in[8], out[8]; /* strides by the place p; where the index leads along a dimension, 0 */
  OTR_WORD(T) number;
} arguments_t;

#if KIND == 4
#if FLOATS
#define BITS(x) F(bits)(x)
#define OF_BITS(x) F(of_bits)(x)
#else
#define BITS(x) ((U)(x))
#define OF_BITS(x) ((T)(x))
#endif
OTR_FUNCTION void otr_join(OTR_GLOBAL T* place, T x) {
  OTR_GLOBAL U* bits = (OTR_GLOBAL U*)place;
  U old = OTR_CALL(atomic_load, U)(bits), joined = BITS(JOIN(OF_BITS(old), x));
  while (joined != old) {
    const U seen = OTR_CALL(atomic_cas, U)(bits, old, joined);
    if (seen == old) return;
    old = seen;
    joined = BITS(JOIN(OF_BITS(old), x));
  }
}
#endif

OTR_KERNEL(indexed)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL const OTR_MEMORY(I) * indices,
    OTR_GLOBAL OTR_MEMORY(OUT) * out, OTR_GLOBAL i64* wrong, const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  (void)in;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
#if FROM_END
    i64 k = (i64)indices[otr_offset(at, args.sizes, args.index, (i32)args.rank)];
    k = k < 0 ? k + args.limit : k;
#else
    const i64 k = (i64)indices[otr_offset(at, args.sizes, args.index, (i32)args.rank)];
#endif
    const i32 there = k >= 0 && k < args.limit && k != args.ignored;
    if (!there && k != args.ignored) {
      wrong[1] = k;
      wrong[2] = args.limit;
      wrong[0] = 1;
    }
    const i64 from = otr_offset(at, args.sizes, args.in, (i32)args.rank);
    const i64 to = otr_offset(at, args.sizes, args.out, (i32)args.rank);
#if KIND == 0
    OTR_STORE(OUT, T, out, to, there ? OTR_LOAD(A, T, in, from + k * args.step) : (T)0);
#elif KIND == 1
    if (there) OTR_CALL(atomic_add, OUT)(out + to + k * args.step, args.number.value * OTR_LOAD(A, T, in, from));
#elif KIND == 2
    if (there) OTR_STORE(OUT, T, out, to + k * args.step, OTR_LOAD(A, T, in, from));
#elif KIND == 4
    if (there) otr_join(out + to + k * args.step, OTR_LOAD(A, T, in, from));
#elif KIND == 5
    (void)from;
    if (there) OTR_CALL(atomic_add, OUT)(out + to + k * args.step, 1);
#else
    (void)from;
    if (there) OTR_STORE(OUT, T, out, to + k * args.step, args.number.value);
#endif
  }
}
