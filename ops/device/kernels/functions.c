/* ---- What kernels with a register type T share ----------------------------------------------
 *
 * It stands behind the definitions of a text. FLOATS is 1 if T is f32 or f64 and the text wants activations.
 */

/* A function of the register type. */
#define F(name) OTR_JOIN2(otr_##name##_, T)

#if FLOATS
#define ROOT_1_2 ((T)0.70710678118654752440)
#define ROOT_2_PI ((T)0.79788456080286535588)
OTR_FUNCTION T otr_gelu(T x, T by_tanh) {
  /* (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)), which keeps all digits of small results. */
  if (by_tanh != 0) return x / (1 + F(exp)(-2 * ROOT_2_PI * (x + (T)0.044715 * x * x * x)));
  return (T)0.5 * x * (1 + F(erf)(x * ROOT_1_2));
}
#endif

