/* Resampling of three spatial dimensions, of which those in front may have size 1. An item has an element of the output, or of
 * the gradient of the input, which sums over all elements of the output that it is part of.
 *
 *   METHOD     0 nearest, 1 linear, 2 cubic
 *   BACKWARD   1: the gradient
 *   SPATIAL    dimensions that are resampled, the last ones
 *   ALIGN      1: the centers of the corners stand on each other, else the edges do
 *   A, T, C    element type, the register types of elements and of places
 *   CHUNK      elements of a group
 */
typedef struct {
  i64 count;
  i64 channels;
  i64 in_sizes[3], out_sizes[3];
  i64 same[3];            /* 1: each element of the output is the one of the input at its place */
  i64 from[5], to[5];     /* strides of what is read, and of what is written */
  OTR_WORD(C) steps[3];   /* in the input, for one in the output */
} arguments_t;

#define TAPS (METHOD == 0 ? 1 : METHOD == 1 ? 2 : 4)

/* The weights of cubic convolution at a distance of up to 1, and of up to 2. */
OTR_FUNCTION C otr_near(C x) { return ((C)1.25 * x - (C)2.25) * x * x + 1; }
OTR_FUNCTION C otr_far(C x) { return ((x - 5) * x + 8) * x * (C)-0.75 + 3; }

/* The elements of the input that one of the output is made of in a dimension, and their weights. */
OTR_FUNCTION i32 otr_taps(const arguments_t* args, i32 d, i64 at, i64* index, T* weight) {
  const i64 last = args->in_sizes[d] - 1;
  index[0] = at < last ? at : last;
  weight[0] = 1;
  if (d < 3 - SPATIAL || args->same[d]) return 1;
#if METHOD == 0
  /* In f32 as PyTorch has it, because rounding decides which of two neighbours is the nearest. */
  const i64 nearest = (i64)otr_floor_f32((f32)at * (f32)args->steps[d].value);
  index[0] = nearest < 0 ? 0 : nearest < last ? nearest : last;
#else
#if ALIGN
  C source = (C)at * args->steps[d].value;
#else
  C source = ((C)at + (C)0.5) * args->steps[d].value - (C)0.5;
#endif
#if METHOD == 1
  source = source < 0 ? (C)0 : source;
#endif
  i64 front = (i64)OTR_CALL(floor, C)(source);
  front = front < last ? front : last;
  C part = source - (C)front;
  part = part < 0 ? (C)0 : part > 1 ? (C)1 : part;
#if METHOD == 1
  index[0] = front;
  index[1] = front < last ? front + 1 : last;
  weight[0] = (T)(1 - part);
  weight[1] = (T)part;
#else
  for (i32 k = 0; k < 4; k++) {
    const i64 place = front + k - 1;
    index[k] = place < 0 ? 0 : place < last ? place : last;
  }
  weight[0] = (T)otr_far(part + 1);
  weight[1] = (T)otr_near(part);
  weight[2] = (T)otr_near(1 - part);
  weight[3] = (T)otr_far(2 - part);
#endif
#endif
  return TAPS;
}

#if BACKWARD
/* The weight of an element of the input in one of the output. */
OTR_FUNCTION T otr_weight(const arguments_t* args, i32 d, i64 at, i64 from) {
  i64 index[TAPS];
  T weight[TAPS], sum = 0;
  const i32 count = otr_taps(args, d, at, index, weight);
  for (i32 k = 0; k < count; k++) sum += index[k] == from ? weight[k] : (T)0;
  return sum;
}
/* The first (up 0) or the last element of the output, or some before or behind, that an element of the input is part of. */
OTR_FUNCTION i64 otr_reach(const arguments_t* args, i32 d, i64 from, i32 up) {
  const i64 last = args->out_sizes[d] - 1, edge = up ? args->in_sizes[d] - 1 : 0;
  const C step = args->steps[d].value;
  if (args->same[d]) return from;
  if (from == edge || !(step > 0)) return up ? last : 0;
  C place = ((C)from + (C)0.5 + (up ? (C)3 : (C)-3)) / step;
  place = place < 1 ? (C)1 : place > (C)last ? (C)last : place;
  const i64 at = (i64)place + (up ? 1 : -1);
  return at < 0 ? 0 : at < last ? at : last;
}
#endif

OTR_KERNEL(resample)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL OTR_MEMORY(A) * out,
    const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
#if BACKWARD
#define SIZES args.in_sizes
#else
#define SIZES args.out_sizes
#endif
    i64 rest = at / SIZES[2];
    const i64 w = at - rest * SIZES[2], h = rest % SIZES[1];
    rest /= SIZES[1];
    const i64 d = rest % SIZES[0];
    rest /= SIZES[0];
    const i64 channel = rest % args.channels, sample = rest / args.channels;
    const i64 from = sample * args.from[0] + channel * args.from[1];
    T sum = 0;
#if BACKWARD
    const i64 last_z = otr_reach(&args, 0, d, 1), last_y = otr_reach(&args, 1, h, 1), last_x = otr_reach(&args, 2, w, 1);
    for (i64 z = otr_reach(&args, 0, d, 0); z <= last_z; z++) {
      const T weight_z = otr_weight(&args, 0, z, d);
      if (weight_z == 0) continue;
      for (i64 y = otr_reach(&args, 1, h, 0); y <= last_y; y++) {
        const T weight_y = weight_z * otr_weight(&args, 1, y, h);
        if (weight_y == 0) continue;
        for (i64 x = otr_reach(&args, 2, w, 0); x <= last_x; x++) {
          const T weight = weight_y * otr_weight(&args, 2, x, w);
          if (weight != 0)
            sum += weight * OTR_LOAD(A, T, in, from + z * args.from[2] + y * args.from[3] + x * args.from[4]);
        }
      }
    }
#else
    i64 zs[TAPS], ys[TAPS], xs[TAPS];
    T of_z[TAPS], of_y[TAPS], of_x[TAPS];
    const i32 count_z = otr_taps(&args, 0, d, zs, of_z), count_y = otr_taps(&args, 1, h, ys, of_y);
    const i32 count_x = otr_taps(&args, 2, w, xs, of_x);
    for (i32 z = 0; z < count_z; z++) {
      for (i32 y = 0; y < count_y; y++) {
        const i64 row = from + zs[z] * args.from[2] + ys[y] * args.from[3];
        for (i32 x = 0; x < count_x; x++)
          sum += of_z[z] * of_y[y] * of_x[x] * OTR_LOAD(A, T, in, row + xs[x] * args.from[4]);
      }
    }
#endif
    OTR_STORE(A, T, out, sample * args.to[0] + channel * args.to[1] + d * args.to[2] + h * args.to[3] + w * args.to[4],
        sum);
  }
}
