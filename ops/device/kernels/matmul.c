/* Products of matrices in tiles, and all that is one: convolutions and their gradients gather their second matrix.
 *
 *   out[m,n] = ACTIVATION(alpha * sum over k of a[m,k] b[k,n] + beta * bias[m,n]) + residual[m,n]
 *
 *   A, OUT            element types: of a, b, bias and residual, and of the output
 *   T                 the register type, in which products are summed
 *   TM, TN, TK        the tile of a group; RM, RN what an item keeps of it in registers at a time
 *   A_DENSE, B_DENSE  1: a is dense along k, b along n
 *   BIAS, RESIDUAL    1: there is one
 *   ACTIVATION(x)     the function
 *   GATHER            1: n and k are places in four dimensions, and b is read where both together lead to; then
 *                     DIVIDES is 1 if that place has to be a multiple of the divisor
 */
typedef struct {
  i64 m, n, k;
  i64 groups;                         /* the second of the two dimensions of batches */
  i64 a_row, a_column, b_row, b_column, c_row, c_column;
  i64 a_batch[2], b_batch[2], c_batch[2];
  i64 bias_row, bias_column, bias_batch[2];
  i64 residual_row, residual_column;
#if GATHER
  i64 n_sizes[3], k_sizes[3];         /* of the last three dimensions */
  i64 n_factor[3], k_factor[3], shift[3], divisor[3], limit[3];
  i64 place[3];                       /* strides of b in these */
  i64 n_first, k_first;               /* strides of b in the first dimension of n and of k */
  i64 a_k[4], c_n[4];                 /* strides of a in the dimensions of k, of the output in those of n */
#endif
  OTR_WORD(T) alpha, beta;
} arguments_t;

#if OTR_GROUP_SIZE == 1
#define LINE TK
#else
#define LINE (TK + 1)                 /* so that the lines of a tile begin in different banks */
#endif
#define ACROSS (TN / RN)
#define BLOCKS ((TM / RM) * ACROSS)
#define PER_ITEM (BLOCKS / OTR_GROUP_SIZE)
#define NOWHERE (-(1 << 30))

#if A_DENSE
#define A_COLUMN 1
#else
#define A_COLUMN args.a_column
#endif
#if B_DENSE
#define B_COLUMN 1
#else
#define B_COLUMN args.b_column
#endif

OTR_KERNEL(matmul)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * a, OTR_GLOBAL const OTR_MEMORY(A) * b,
    OTR_GLOBAL const OTR_MEMORY(A) * bias, OTR_GLOBAL const OTR_MEMORY(A) * residual, OTR_GLOBAL OTR_MEMORY(OUT) * out,
    const arguments_t args) {
  OTR_SHARED(T, tile_a, TM * LINE);
  OTR_SHARED(T, tile_b, TK * TN);
#if GATHER
  OTR_SHARED(i32, n_at, 3 * TN);
  OTR_SHARED(i32, k_at, 3 * TK);
  OTR_SHARED(i64, n_offset, TN);
  OTR_SHARED(i64, k_offset, TK);
  OTR_SHARED(i64, a_offset, TK);
#endif
  const i32 m_tiles = (i32)((args.m + TM - 1) / TM), n_tiles = (i32)((args.n + TN - 1) / TN);
  const i32 n_tile = OTR_GROUP_ID(0) % n_tiles, m_tile = OTR_GROUP_ID(0) / n_tiles % m_tiles;
  const i64 batch = OTR_GROUP_ID(0) / n_tiles / m_tiles;
  const i64 batch0 = batch / args.groups, batch1 = batch % args.groups;
  const i32 m0 = m_tile * TM, n0 = n_tile * TN;
  const i32 m_end = (i32)(args.m - m0 < TM ? args.m - m0 : TM), n_end = (i32)(args.n - n0 < TN ? args.n - n0 : TN);
  a += batch0 * args.a_batch[0] + batch1 * args.a_batch[1];
  b += batch0 * args.b_batch[0] + batch1 * args.b_batch[1];
  out += batch0 * args.c_batch[0] + batch1 * args.c_batch[1];
  (void)bias;
  (void)residual;

#if GATHER
  for (i32 n = OTR_LANE; n < TN; n += OTR_GROUP_SIZE) {
    i32 rest = n0 + n, w = rest % (i32)args.n_sizes[2];
    rest /= (i32)args.n_sizes[2];
    i32 h = rest % (i32)args.n_sizes[1];
    rest /= (i32)args.n_sizes[1];
    i32 d = rest % (i32)args.n_sizes[0];
    rest /= (i32)args.n_sizes[0];
    n_offset[n] = rest * args.n_first;
    n_at[n] = n < n_end ? d * (i32)args.n_factor[0] + (i32)args.shift[0] : NOWHERE;
    n_at[TN + n] = h * (i32)args.n_factor[1] + (i32)args.shift[1];
    n_at[2 * TN + n] = w * (i32)args.n_factor[2] + (i32)args.shift[2];
  }
#endif

  T sums[PER_ITEM][RM][RN];
  for (i32 p = 0; p < PER_ITEM; p++)
    for (i32 i = 0; i < RM; i++)
      for (i32 j = 0; j < RN; j++) sums[p][i][j] = 0;

  for (i64 k0 = 0; k0 < args.k; k0 += TK) {
    const i32 k_end = (i32)(args.k - k0 < TK ? args.k - k0 : TK);
#if GATHER
    for (i32 k = OTR_LANE; k < TK; k += OTR_GROUP_SIZE) {
      i32 rest = (i32)(k0 + k), w = rest % (i32)args.k_sizes[2];
      rest /= (i32)args.k_sizes[2];
      i32 h = rest % (i32)args.k_sizes[1];
      rest /= (i32)args.k_sizes[1];
      i32 d = rest % (i32)args.k_sizes[0];
      rest /= (i32)args.k_sizes[0];
      k_offset[k] = rest * args.k_first;
      k_at[k] = k < k_end ? d * (i32)args.k_factor[0] : NOWHERE;
      k_at[TK + k] = h * (i32)args.k_factor[1];
      k_at[2 * TK + k] = w * (i32)args.k_factor[2];
      a_offset[k] = rest * args.a_k[0] + d * args.a_k[1] + h * args.a_k[2] + w * args.a_k[3];
    }
    OTR_BARRIER();
    for (i32 at = OTR_LANE; at < TM * TK; at += OTR_GROUP_SIZE) {
      i32 m = at / TK, k = at % TK;
      tile_a[m * LINE + k] =
          m < m_end && k < k_end ? OTR_LOAD(A, T, a, (i64)(m0 + m) * args.a_row + a_offset[k]) : (T)0;
    }
    for (i32 at = OTR_LANE; at < TK * TN; at += OTR_GROUP_SIZE) {
      i32 k = at / TN, n = at % TN;
      i32 d = n_at[n] + k_at[k], h = n_at[TN + n] + k_at[TK + k], w = n_at[2 * TN + n] + k_at[2 * TK + k];
      i32 there = d >= 0 && h >= 0 && w >= 0;
#if DIVIDES
      i32 d1 = d / (i32)args.divisor[0], h1 = h / (i32)args.divisor[1], w1 = w / (i32)args.divisor[2];
      there = there && d1 * (i32)args.divisor[0] == d && h1 * (i32)args.divisor[1] == h &&
              w1 * (i32)args.divisor[2] == w;
      d = d1;
      h = h1;
      w = w1;
#endif
      there = there && d < (i32)args.limit[0] && h < (i32)args.limit[1] && w < (i32)args.limit[2];
      i64 from = n_offset[n] + k_offset[k] + d * args.place[0] + h * args.place[1] + w * args.place[2];
      tile_b[k * TN + n] = there ? OTR_LOAD(A, T, b, from) : (T)0;
    }
#elif OTR_GROUP_SIZE == 1
    for (i32 m = 0; m < TM; m++) {
      i64 from = (i64)(m0 + m) * args.a_row + k0 * A_COLUMN;
      i32 end = m < m_end ? k_end : 0;
      for (i32 k = 0; k < end; k++) tile_a[m * LINE + k] = OTR_LOAD(A, T, a, from + k * A_COLUMN);
      for (i32 k = end; k < TK; k++) tile_a[m * LINE + k] = 0;
    }
#if B_DENSE
    for (i32 k = 0; k < TK; k++) {
      i64 from = (k0 + k) * args.b_row + n0;
      i32 end = k < k_end ? n_end : 0;
      for (i32 n = 0; n < end; n++) tile_b[k * TN + n] = OTR_LOAD(A, T, b, from + n);
      for (i32 n = end; n < TN; n++) tile_b[k * TN + n] = 0;
    }
#else
    for (i32 n = 0; n < TN; n++) {
      i64 from = (i64)(n0 + n) * B_COLUMN + k0 * args.b_row;
      i32 end = n < n_end ? k_end : 0;
      for (i32 k = 0; k < end; k++) tile_b[k * TN + n] = OTR_LOAD(A, T, b, from + k * args.b_row);
      for (i32 k = end; k < TK; k++) tile_b[k * TN + n] = 0;
    }
#endif
#else
    for (i32 at = OTR_LANE; at < TM * TK; at += OTR_GROUP_SIZE) {
#if A_DENSE
      i32 m = at / TK, k = at % TK;
#else
      i32 k = at / TM, m = at % TM;
#endif
      i64 from = (i64)(m0 + m) * args.a_row + (k0 + k) * A_COLUMN;
      tile_a[m * LINE + k] = m < m_end && k < k_end ? OTR_LOAD(A, T, a, from) : (T)0;
    }
    for (i32 at = OTR_LANE; at < TK * TN; at += OTR_GROUP_SIZE) {
#if B_DENSE
      i32 k = at / TN, n = at % TN;
#else
      i32 n = at / TK, k = at % TK;
#endif
      i64 from = (k0 + k) * args.b_row + (i64)(n0 + n) * B_COLUMN;
      tile_b[k * TN + n] = n < n_end && k < k_end ? OTR_LOAD(A, T, b, from) : (T)0;
    }
#endif
    OTR_BARRIER();
    for (i32 p = 0; p < PER_ITEM; p++) {
      const i32 block = p * OTR_GROUP_SIZE + OTR_LANE;
      const i32 row = block / ACROSS * RM, column = block % ACROSS * RN;
      T here[RM][RN];
      for (i32 i = 0; i < RM; i++)
        for (i32 j = 0; j < RN; j++) here[i][j] = sums[p][i][j];
      for (i32 k = 0; k < TK; k++)
        for (i32 i = 0; i < RM; i++) {
          const T x = tile_a[(row + i) * LINE + k];
          for (i32 j = 0; j < RN; j++) here[i][j] = F(fma)(x, tile_b[k * TN + column + j], here[i][j]);
        }
      for (i32 i = 0; i < RM; i++)
        for (i32 j = 0; j < RN; j++) sums[p][i][j] = here[i][j];
    }
    OTR_BARRIER();
  }

  for (i32 p = 0; p < PER_ITEM; p++) {
    const i32 block = p * OTR_GROUP_SIZE + OTR_LANE;
    const i32 row = block / ACROSS * RM, column = block % ACROSS * RN;
    for (i32 j = 0; j < RN; j++) {
      const i32 n = n0 + column + j;
      if (n >= args.n) continue;
#if GATHER
      i32 rest = n, w = rest % (i32)args.n_sizes[2];
      rest /= (i32)args.n_sizes[2];
      i32 h = rest % (i32)args.n_sizes[1];
      rest /= (i32)args.n_sizes[1];
      i32 d = rest % (i32)args.n_sizes[0];
      rest /= (i32)args.n_sizes[0];
      const i64 to = rest * args.c_n[0] + d * args.c_n[1] + h * args.c_n[2] + w * args.c_n[3];
#else
      const i64 to = n * args.c_column;
#endif
      for (i32 i = 0; i < RM; i++) {
        const i32 m = m0 + row + i;
        if (m >= args.m) continue;
        T x = F(mul)(args.alpha.value, sums[p][i][j]);
#if BIAS
        const i64 from = batch0 * args.bias_batch[0] + batch1 * args.bias_batch[1] + m * args.bias_row +
                         n * args.bias_column;
        if (args.beta.value != 0) x = F(fma)(args.beta.value, OTR_LOAD(A, T, bias, from), x);
#endif
        x = ACTIVATION(x);
#if RESIDUAL
        x += OTR_LOAD(A, T, residual, m * args.residual_row + n * args.residual_column);
#endif
        OTR_STORE(OUT, T, out, m * args.c_row + to, x);
      }
    }
  }
}
