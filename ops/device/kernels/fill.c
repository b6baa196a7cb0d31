/* A fill as a task of a graph: a pattern of 16 bytes, repeated. A group has CHUNK bytes.
 *
 *   CHUNK   a multiple of 16
 */
typedef struct {
  i64 size;  /* bytes */
  i64 wide;  /* whether the destination lies at a multiple of 8, and the size is one */
  u64 low, high;
} arguments_t;

OTR_KERNEL(fill)(OTR_ITEM OTR_GLOBAL u8 * to, const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.size ? begin + CHUNK : args.size;
  if (args.wide) {
    OTR_GLOBAL u64* words = (OTR_GLOBAL u64*)to;
    OTR_INDEPENDENT
    for (i64 at = begin / 8 + OTR_LANE; at < end / 8; at += OTR_GROUP_SIZE) words[at] = at & 1 ? args.high : args.low;
  } else {
    for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE)
      to[at] = (u8)((at & 8 ? args.high : args.low) >> (at & 7) * 8);
  }
}
