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
 *
 * A text that stores the sums itself defines EPILOGUE: statements for `otr_left` neighbours in `otr_row` from `otr_column` on,
 * whose sums are `otr_sums`. Rows of all batches are counted together. It has NUMBERS of its own, and puts its parameters behind
 * OTR_ITEM, MATRIX_A and MATRIX_B among them.
 */
typedef struct {
#ifdef EPILOGUE
  NUMBERS
  i64 a_first, b_first;               /* elements in front of a and b */
#endif
  i64 m, n, k;
  i64 groups;                         /* the second of the two dimensions of batches */
  i64 a_row, a_column, b_row, b_column;
  i64 a_batch[2], b_batch[2];
#ifndef EPILOGUE
  i64 c_row, c_column, c_batch[2];
  i64 bias_row, bias_column, bias_batch[2];
  i64 residual_row, residual_column;
#endif
#if GATHER
  i64 n_sizes[3], k_sizes[3];         /* of the last three dimensions */
  i64 n_factor[3], k_factor[3], shift[3], divisor[3], limit[3];
  i64 place[3];                       /* strides of b in these */
  i64 n_first, k_first;               /* strides of b in the first dimension of n and of k */
  i64 a_k[4], c_n[4];                 /* strides of a in the dimensions of k, of the output in those of n */
#endif
#ifndef EPILOGUE
  OTR_WORD(T) alpha, beta;
#endif
} arguments_t;

/* If a group is one item, tiles are walked in runs, a panel of RN columns of b lies together, and rows of RN sums are
 * vectors. */
#define SERIAL (OTR_GROUP_SIZE == 1)
#if SERIAL
#define LINE TK
#define B_AT(k, n) (((n) / RN * TK + (k)) * RN + (n) % RN)
#else
#define LINE (TK + 1)                 /* so that the lines of a tile begin in different banks */
#define B_AT(k, n) ((k)*TN + (n))
#endif
#define VECTORS (SERIAL && OTR_HAS_VECTORS && FLOATS)
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

#if VECTORS
#ifndef LANES
#define LANES RN                      /* the numbers of a vector */
#endif
#define VECTOR OTR_VECTOR(T, LANES)
#define OF_RN (RN / LANES)
/* Adds to RM rows of sums what `k_end` columns of a and a panel of b give. */
OTR_FUSED void add_products(OTR_LOCAL const T* x, OTR_LOCAL const T* y, T* sums, i32 k_end) {
  VECTOR here[RM][OF_RN], line[OF_RN];
  OTR_UNROLL for (i32 i = 0; i < RM; i++)
    OTR_UNROLL for (i32 j = 0; j < OF_RN; j++) here[i][j] = OTR_VECTOR_LOAD(T, LANES, sums + i * RN + j * LANES);
  for (i32 k = 0; k < k_end; k++) {
    OTR_UNROLL for (i32 j = 0; j < OF_RN; j++) line[j] = OTR_VECTOR_LOAD(T, LANES, y + k * RN + j * LANES);
    OTR_UNROLL for (i32 i = 0; i < RM; i++)
      OTR_UNROLL for (i32 j = 0; j < OF_RN; j++)
        here[i][j] = OTR_VECTOR_FMA(T, LANES, x[i * LINE + k], line[j], here[i][j]);
  }
  OTR_UNROLL for (i32 i = 0; i < RM; i++)
    OTR_UNROLL for (i32 j = 0; j < OF_RN; j++) OTR_VECTOR_STORE(T, LANES, sums + i * RN + j * LANES, here[i][j]);
}
#endif

OTR_KERNEL(matmul)(OTR_ITEM
#ifndef EPILOGUE
    OTR_GLOBAL const OTR_MEMORY(A) * a, OTR_GLOBAL const OTR_MEMORY(A) * b,
    OTR_GLOBAL const OTR_MEMORY(A) * bias, OTR_GLOBAL const OTR_MEMORY(A) * residual, OTR_GLOBAL OTR_MEMORY(OUT) * out,
#endif
    const arguments_t args) {
  OTR_SHARED(T, tile_a, TM * LINE);
  OTR_SHARED(T, tile_b, TK * TN);
#if GATHER
  OTR_SHARED(i32, n_at, 3 * TN);
  OTR_SHARED(i32, k_at, 3 * TK);
  OTR_SHARED(i64, n_offset, TN);
  OTR_SHARED(i64, n_to, TN);
#if SERIAL
  OTR_SHARED(i32, n_run, TN);
#endif
  OTR_SHARED(i64, k_offset, TK);
  OTR_SHARED(i64, a_offset, TK);
#endif
  const i32 m_tiles = (i32)((args.m + TM - 1) / TM), n_tiles = (i32)((args.n + TN - 1) / TN);
  const i32 n_tile = OTR_GROUP_ID(0) % n_tiles, m_tile = OTR_GROUP_ID(0) / n_tiles % m_tiles;
  const i64 batch = OTR_GROUP_ID(0) / n_tiles / m_tiles;
  const i64 batch0 = batch / args.groups, batch1 = batch % args.groups;
  const i32 m0 = m_tile * TM, n0 = n_tile * TN;
  const i32 m_end = (i32)(args.m - m0 < TM ? args.m - m0 : TM), n_end = (i32)(args.n - n0 < TN ? args.n - n0 : TN);
#ifdef EPILOGUE
  OTR_GLOBAL const OTR_MEMORY(A)* a = MATRIX_A + args.a_first;
  OTR_GLOBAL const OTR_MEMORY(A)* b = MATRIX_B + args.b_first;
#else
  out += batch0 * args.c_batch[0] + batch1 * args.c_batch[1];
  (void)bias;
  (void)residual;
#endif
  a += batch0 * args.a_batch[0] + batch1 * args.a_batch[1];
  b += batch0 * args.b_batch[0] + batch1 * args.b_batch[1];

#if GATHER
  for (i32 n = OTR_LANE; n < TN; n += OTR_GROUP_SIZE) {
    i32 rest = n0 + n, w = rest % (i32)args.n_sizes[2];
    rest /= (i32)args.n_sizes[2];
    i32 h = rest % (i32)args.n_sizes[1];
    rest /= (i32)args.n_sizes[1];
    i32 d = rest % (i32)args.n_sizes[0];
    rest /= (i32)args.n_sizes[0];
    n_offset[n] = rest * args.n_first;
    n_to[n] = rest * args.c_n[0] + d * args.c_n[1] + h * args.c_n[2] + w * args.c_n[3];
#if SERIAL
    /* So many columns differ in the last dimension alone. */
    n_run[n] = (i32)args.n_sizes[2] - w < n_end - n ? (i32)args.n_sizes[2] - w : n_end - n;
#endif
    n_at[n] = n < n_end ? d * (i32)args.n_factor[0] + (i32)args.shift[0] : NOWHERE;
    n_at[TN + n] = h * (i32)args.n_factor[1] + (i32)args.shift[1];
    n_at[2 * TN + n] = w * (i32)args.n_factor[2] + (i32)args.shift[2];
  }
  OTR_BARRIER();
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
#if SERIAL && !DIVIDES
    for (i32 k = 0; k < k_end; k++) {
      for (i32 n = 0; n < n_end; n += n_run[n]) {
        const i32 d = n_at[n] + k_at[k], h = n_at[TN + n] + k_at[TK + k], w = n_at[2 * TN + n] + k_at[2 * TK + k];
        const i32 run = n_run[n], step = (i32)args.n_factor[2], room = (i32)args.limit[2] - w;
        const i32 there = d >= 0 && h >= 0 && d < (i32)args.limit[0] && h < (i32)args.limit[1] && room > 0;
        /* From `first` to `end` the run is inside. */
        i32 end = !there ? 0 : step == 1 ? room : (room + step - 1) / step;
        end = end < run ? end : run;
        i32 first = w >= 0 ? 0 : step == 1 ? -w : (step - 1 - w) / step;
        first = first < end ? first : end;
        const i64 from = n_offset[n] + k_offset[k] + d * args.place[0] + h * args.place[1] + w * args.place[2];
        const i64 stride = step * args.place[2];
        for (i32 j = 0; j < first; j++) tile_b[B_AT(k, n + j)] = 0;
        if (stride == 1)
          for (i32 j = first; j < end; j++) tile_b[B_AT(k, n + j)] = OTR_LOAD(A, T, b, from + j);
        else
          for (i32 j = first; j < end; j++) tile_b[B_AT(k, n + j)] = OTR_LOAD(A, T, b, from + j * stride);
        for (i32 j = end; j < run; j++) tile_b[B_AT(k, n + j)] = 0;
      }
      for (i32 n = n_end; n < TN; n++) tile_b[B_AT(k, n)] = 0;
    }
#else
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
      tile_b[B_AT(k, n)] = there ? OTR_LOAD(A, T, b, from) : (T)0;
    }
#endif
#elif SERIAL
    for (i32 m = 0; m < TM; m++) {
      i64 from = (i64)(m0 + m) * args.a_row + k0 * A_COLUMN;
      i32 end = m < m_end ? k_end : 0;
      for (i32 k = 0; k < end; k++) tile_a[m * LINE + k] = OTR_LOAD(A, T, a, from + k * A_COLUMN);
      for (i32 k = end; k < k_end; k++) tile_a[m * LINE + k] = 0;
    }
#if B_DENSE
    for (i32 k = 0; k < k_end; k++) {
      const i64 from = (k0 + k) * args.b_row + n0;
      for (i32 n = 0; n < TN; n += RN) {
        OTR_LOCAL T* to = tile_b + B_AT(k, n);
        const i32 end = n_end - n;
        if (end >= RN)
          for (i32 j = 0; j < RN; j++) to[j] = OTR_LOAD(A, T, b, from + n + j);
        else
          for (i32 j = 0; j < RN; j++) to[j] = j < end ? OTR_LOAD(A, T, b, from + n + j) : (T)0;
      }
    }
#else
    for (i32 n = 0; n < TN; n++) {
      const i64 from = (i64)(n0 + n) * B_COLUMN + k0 * args.b_row;
      for (i32 k = 0; k < k_end; k++)
        tile_b[B_AT(k, n)] = n < n_end ? OTR_LOAD(A, T, b, from + k * args.b_row) : (T)0;
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
      tile_b[B_AT(k, n)] = n < n_end && k < k_end ? OTR_LOAD(A, T, b, from) : (T)0;
    }
#endif
    OTR_BARRIER();
    for (i32 p = 0; p < PER_ITEM; p++) {
      const i32 block = p * OTR_GROUP_SIZE + OTR_LANE;
      const i32 row = block / ACROSS * RM, column = block % ACROSS * RN;
#if SERIAL
      if (row >= m_end || column >= n_end) continue;
#endif
#if VECTORS
      add_products(tile_a + row * LINE, tile_b + B_AT(0, column), sums[p][0], k_end);
#else
      T here[RM][RN];
      OTR_UNROLL for (i32 i = 0; i < RM; i++)
        OTR_UNROLL for (i32 j = 0; j < RN; j++) here[i][j] = sums[p][i][j];
      for (i32 k = 0; k < (SERIAL ? k_end : TK); k++)
        OTR_UNROLL for (i32 i = 0; i < RM; i++) {
          const T x = tile_a[(row + i) * LINE + k];
          OTR_UNROLL for (i32 j = 0; j < RN; j++) here[i][j] = F(fma)(x, tile_b[B_AT(k, column + j)], here[i][j]);
        }
      OTR_UNROLL for (i32 i = 0; i < RM; i++)
        OTR_UNROLL for (i32 j = 0; j < RN; j++) sums[p][i][j] = here[i][j];
#endif
    }
    OTR_BARRIER();
  }

  for (i32 p = 0; p < PER_ITEM; p++) {
    const i32 block = p * OTR_GROUP_SIZE + OTR_LANE;
    const i32 row = block / ACROSS * RM, column = block % ACROSS * RN;
    for (i32 i = 0; i < RM; i++) {
      const i32 m = m0 + row + i;
      if (m >= args.m) continue;
#ifdef EPILOGUE
      const i64 otr_row = batch * args.m + m, otr_column = n0 + column;
      const T* otr_sums = sums[p][i];
      /* Whole vectors have a count that the compiler knows. */
      if (SERIAL && n_end - column >= RN) {
        const i32 otr_left = RN;
        EPILOGUE
      } else if (column < n_end) {
        const i32 otr_left = n_end - column;
        EPILOGUE
      }
#else
      /* A bound that is no constant would take the sums of an item out of its registers. */
      for (i32 j = 0; j < (SERIAL && n_end - column < RN ? n_end - column : RN); j++) {
        if (column + j >= n_end) continue;
        const i32 n = n0 + column + j;
#if GATHER
        const i64 to = n_to[column + j];
#else
        const i64 to = n * args.c_column;
#endif
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
#endif
    }
  }
}
