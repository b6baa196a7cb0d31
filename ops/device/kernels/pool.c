/* Pooling over windows of three spatial dimensions, of which those in front may have size 1. An item has an element of the
 * output, or of the gradient of the input, which sums over all windows that it is in.
 *
 *   KIND       0 the maximum, 1 the mean, 2 and 3 their gradients
 *   ADAPTIVE   1: windows share the input evenly, else they slide
 *   DIVISOR    of means: 0 the elements inside of the input, 1 with the padding, 2 a number
 *   A          element type, T the register type
 *   CHUNK      elements of a group
 */
typedef struct {
  i64 count;
  i64 channels;
  i64 in_sizes[3], out_sizes[3];
  i64 window[3], stride[3], padding[3], dilation[3];
  i64 divisor;
  i64 a[5], out[5], index[5];   /* strides of what is read, what is written, and of indices */
} arguments_t;

/* The first place of a window and the one behind its last, in the input or beside it. */
OTR_FUNCTION i64 otr_window_begin(const arguments_t* args, i32 d, i64 at) {
#if ADAPTIVE
  return at * args->in_sizes[d] / args->out_sizes[d];
#else
  return at * args->stride[d] - args->padding[d];
#endif
}
OTR_FUNCTION i64 otr_window_end(const arguments_t* args, i32 d, i64 at) {
#if ADAPTIVE
  return ((at + 1) * args->in_sizes[d] + args->out_sizes[d] - 1) / args->out_sizes[d];
#else
  return otr_window_begin(args, d, at) + args->dilation[d] * (args->window[d] - 1) + 1;
#endif
}
#if ADAPTIVE
#define DILATION(d) 1
#else
#define DILATION(d) args.dilation[d]
#endif

/* By what the sum of a window is divided, in one dimension. */
OTR_FUNCTION i64 otr_window_size(const arguments_t* args, i32 d, i64 at) {
  i64 begin = otr_window_begin(args, d, at), end = otr_window_end(args, d, at);
#if DIVISOR == 1
  i64 most = args->in_sizes[d] + args->padding[d];
  return (end < most ? end : most) - begin;
#else
  begin = begin < 0 ? 0 : begin;
  return (end < args->in_sizes[d] ? end : args->in_sizes[d]) - begin;
#endif
}
OTR_FUNCTION T otr_divisor(const arguments_t* args, i64 d, i64 h, i64 w) {
#if DIVISOR == 2
  (void)d;
  (void)h;
  (void)w;
  return (T)args->divisor;
#else
  return (T)(otr_window_size(args, 0, d) * otr_window_size(args, 1, h) * otr_window_size(args, 2, w));
#endif
}

/* The first and the last window that an element is in; some between may not have it, where windows have gaps. */
OTR_FUNCTION i64 otr_first_window(const arguments_t* args, i32 d, i64 at) {
#if ADAPTIVE
  return at * args->out_sizes[d] / args->in_sizes[d];
#else
  i64 reach = at + args->padding[d] - args->dilation[d] * (args->window[d] - 1);
  return reach <= 0 ? 0 : (reach + args->stride[d] - 1) / args->stride[d];
#endif
}
OTR_FUNCTION i64 otr_last_window(const arguments_t* args, i32 d, i64 at) {
#if ADAPTIVE
  i64 last = ((at + 1) * args->out_sizes[d] + args->in_sizes[d] - 1) / args->in_sizes[d] - 1;
#else
  i64 last = (at + args->padding[d]) / args->stride[d];
#endif
  return last < args->out_sizes[d] ? last : args->out_sizes[d] - 1;
}

OTR_KERNEL(pool)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in, OTR_GLOBAL OTR_MEMORY(A) * out, OTR_GLOBAL i64* indices,
    const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count;
  (void)indices;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
#if KIND < 2
#define SIZES args.out_sizes
#else
#define SIZES args.in_sizes
#endif
    i64 rest = at / SIZES[2], w = at - rest * SIZES[2];
    i64 h = rest % SIZES[1];
    rest /= SIZES[1];
    i64 d = rest % SIZES[0];
    rest /= SIZES[0];
    const i64 channel = rest % args.channels, sample = rest / args.channels;
    const i64 from = sample * args.a[0] + channel * args.a[1], to = sample * args.out[0] + channel * args.out[1] +
        d * args.out[2] + h * args.out[3] + w * args.out[4];
    const i64 of_index = sample * args.index[0] + channel * args.index[1];
    (void)of_index;
#if KIND < 2
    T value = 0;
    i64 place = -1;
#if KIND == 0
    value = (T)(-OTR_INFINITY_F32);
#endif
    for (i64 z = otr_window_begin(&args, 0, d); z < otr_window_end(&args, 0, d); z += DILATION(0)) {
      if (z < 0 || z >= args.in_sizes[0]) continue;
      for (i64 y = otr_window_begin(&args, 1, h); y < otr_window_end(&args, 1, h); y += DILATION(1)) {
        if (y < 0 || y >= args.in_sizes[1]) continue;
        for (i64 x = otr_window_begin(&args, 2, w); x < otr_window_end(&args, 2, w); x += DILATION(2)) {
          if (x < 0 || x >= args.in_sizes[2]) continue;
          T one = OTR_LOAD(A, T, in, from + z * args.a[2] + y * args.a[3] + x * args.a[4]);
#if KIND == 0
          if (place < 0 || one > value || one != one) {
            value = one;
            place = (z * args.in_sizes[1] + y) * args.in_sizes[2] + x;
          }
#else
          value += one;
#endif
        }
      }
    }
#if KIND == 0
    indices[of_index + d * args.index[2] + h * args.index[3] + w * args.index[4]] = place < 0 ? 0 : place;
    OTR_STORE(A, T, out, to, value);
#else
    (void)place;
    OTR_STORE(A, T, out, to, value / otr_divisor(&args, d, h, w));
#endif
#else
    T sum = 0;
    const i64 number = (d * args.in_sizes[1] + h) * args.in_sizes[2] + w;
    (void)number;
    for (i64 z = otr_first_window(&args, 0, d); z <= otr_last_window(&args, 0, d); z++) {
      for (i64 y = otr_first_window(&args, 1, h); y <= otr_last_window(&args, 1, h); y++) {
        for (i64 x = otr_first_window(&args, 2, w); x <= otr_last_window(&args, 2, w); x++) {
          T one = OTR_LOAD(A, T, in, from + z * args.a[2] + y * args.a[3] + x * args.a[4]);
#if KIND == 2
          if (indices[of_index + z * args.index[2] + y * args.index[3] + x * args.index[4]] == number) sum += one;
#else
          sum += one / otr_divisor(&args, z, y, x);
#endif
        }
      }
    }
    OTR_STORE(A, T, out, to, sum);
#endif
  }
}
