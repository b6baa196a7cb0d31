/* ---- What all kernels share ----------------------------------------------------------------
 *
 * A kernel takes addresses, and one struct of words of 8 bytes: i64, or numbers of OTR_WORD(T).
 */
typedef struct {
  f32 value;
  u32 rest;
} otr_word_f32;
typedef struct {
  i32 value;
  u32 rest;
} otr_word_i32;
typedef struct {
  i64 value;
} otr_word_i64;
#if OTR_HAS_F64
typedef struct {
  f64 value;
} otr_word_f64;
#endif
#define OTR_WORD(T) OTR_JOIN2(otr_word_, T)

/* The place of the element with this number in row-major order. */
OTR_FUNCTION i64 otr_offset(i64 number, const i64* sizes, const i64* strides, i32 rank) {
  i64 offset = 0;
  for (i32 d = rank - 1; d > 0; d--) {
    i64 rest = number / sizes[d];
    offset += (number - rest * sizes[d]) * strides[d];
    number = rest;
  }
  return rank > 0 ? offset + number * strides[0] : 0;
}

