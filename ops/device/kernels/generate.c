/* Values of positions alone: random numbers and sequences. An item makes the PER values of one block of four words.
 *
 *   KIND    0 uniform, 1 normal, 2 of probability, 3 integers, 4 start + step * position
 *   OUT     element type, C the register type of a value, T that of the numbers
 *   WIDE    1: values are made of two words each
 *   DIGITS  random bits of a uniform number
 *   PER     values of a block
 *   CHUNK   blocks of a group
 */
typedef struct {
  i64 count;
  i64 seed, offset;
  i64 from, range;
  OTR_WORD(T) a, b;
} arguments_t;

#if OTR_HAS_F64 && WIDE
/* 53 bits of two words as a number in [0, 1). */
OTR_FUNCTION f64 otr_fraction_f64(u32 high, u32 low) {
  return (f64)(i64)((((u64)high << 32) | low) >> 11) * (1.0 / 9007199254740992.0);
}
#endif

OTR_KERNEL(generate)(OTR_ITEM OTR_GLOBAL OTR_MEMORY(OUT) * out, const arguments_t args) {
  const i64 blocks = (args.count + PER - 1) / PER, begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < blocks ? begin + CHUNK : blocks;
  for (i64 block = begin + OTR_LANE; block < end; block += OTR_GROUP_SIZE) {
    C values[PER];
#if KIND != 4
    u32 words[4];
    otr_philox((u64)args.seed, (u64)args.offset + (u64)block, words);
#endif
#if KIND == 0 && WIDE
    for (i32 k = 0; k < 2; k++)
      values[k] = F(fma)(otr_fraction_f64(words[2 * k], words[2 * k + 1]), args.b.value - args.a.value, args.a.value);
#elif KIND == 0
    for (i32 k = 0; k < 4; k++) values[k] = F(fma)(otr_fraction_f32(words[k], DIGITS), args.b.value, args.a.value);
#elif KIND == 1 && WIDE
    T radius = F(sqrt)(-2 * F(log)(1 - otr_fraction_f64(words[0], words[1])));
    T angle = (T)6.283185307179586477 * otr_fraction_f64(words[2], words[3]);
    values[0] = F(fma)(radius * F(cos)(angle), args.b.value, args.a.value);
    values[1] = F(fma)(radius * F(sin)(angle), args.b.value, args.a.value);
#elif KIND == 1
    for (i32 k = 0; k < 4; k += 2) {
      T radius = F(sqrt)(-2 * F(log)(1 - otr_fraction_f32(words[k], 24))) * args.b.value;
      T angle = (T)6.283185307179586477 * otr_fraction_f32(words[k + 1], 24);
      values[k] = F(fma)(radius, F(cos)(angle), args.a.value);
      values[k + 1] = F(fma)(radius, F(sin)(angle), args.a.value);
    }
#elif KIND == 2
    for (i32 k = 0; k < 4; k++) values[k] = (i64)words[k] < args.range;
#elif KIND == 3
    for (i32 k = 0; k < 2; k++) {
      u64 bits = ((u64)words[2 * k] << 32) | words[2 * k + 1];
      if (args.range != 0) bits = otr_mul_high_u64(bits, (u64)args.range);
      values[k] = (i64)((u64)args.from + bits);
    }
#else
    values[0] = F(fma)(args.b.value, (T)block, args.a.value);
#endif
    for (i32 k = 0; k < PER; k++)
      if (block * PER + k < args.count) OTR_STORE(OUT, C, out, block * PER + k, values[k]);
  }
}
