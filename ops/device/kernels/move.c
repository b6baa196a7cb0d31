/* A copy within a device as a task of a graph: bytes that do not overlap. A group has CHUNK of them.
 *
 *   CHUNK   a multiple of 8
 */
typedef struct {
  i64 size;  /* bytes */
  i64 wide;  /* whether both ends lie at multiples of 8, and the size is one */
} arguments_t;

OTR_KERNEL(move)(OTR_ITEM OTR_GLOBAL u8 * to, OTR_GLOBAL const u8 * from, const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.size ? begin + CHUNK : args.size;
  if (args.wide) {
    OTR_GLOBAL u64* words = (OTR_GLOBAL u64*)to;
    OTR_GLOBAL const u64* source = (OTR_GLOBAL const u64*)from;
    OTR_INDEPENDENT
    for (i64 at = begin / 8 + OTR_LANE; at < end / 8; at += OTR_GROUP_SIZE) words[at] = source[at];
  } else {
    OTR_INDEPENDENT
    for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) to[at] = from[at];
  }
}
