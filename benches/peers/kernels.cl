// Operators by hand: the peers of Outrigger's own device kernels in `cargo xtask bench driver`, written for CPUs with
// vectors. Sizes come as definitions. All tensors are float32 and contiguous.

kernel void add(global const float* a, global const float* b, global float* out) {
  const size_t at = get_global_id(0);
  out[at] = a[at] + b[at];
}

kernel void gelu(global const float* a, global float* out) {
  const size_t at = get_global_id(0);
  const float x = a[at];
  out[at] = 0.5f * x * (1.0f + erf(x * M_SQRT1_2_F));
}

float sum_of(float16 x) {
  const float8 x8 = x.lo + x.hi;
  const float4 x4 = x8.lo + x8.hi;
  return x4.x + x4.y + x4.z + x4.w;
}

float largest_of(float16 x) {
  const float8 x8 = fmax(x.lo, x.hi);
  const float4 x4 = fmax(x8.lo, x8.hi);
  return fmax(fmax(x4.x, x4.y), fmax(x4.z, x4.w));
}

// Each item adds up SUM_CHUNK elements.
kernel void sum_chunks(global const float* a, global float* parts) {
  global const float* from = a + get_global_id(0) * SUM_CHUNK;
  float16 total = 0;
  for (int at = 0; at < SUM_CHUNK / 16; ++at) total += vload16(at, from);
  parts[get_global_id(0)] = sum_of(total);
}

// One item adds up the sums of the chunks.
kernel void sum_parts(global const float* parts, global float* out) {
  float total = 0;
  for (int at = 0; at < SUM_COUNT / SUM_CHUNK; ++at) total += parts[at];
  *out = total;
}

// Each item has a row.
kernel void softmax(global const float* a, global float* out) {
  global const float* from = a + get_global_id(0) * SOFTMAX_COLUMNS;
  global float* to = out + get_global_id(0) * SOFTMAX_COLUMNS;
  float16 largest = -INFINITY;
  for (int at = 0; at < SOFTMAX_COLUMNS / 16; ++at) largest = fmax(largest, vload16(at, from));
  const float top = largest_of(largest);
  float16 total = 0;
  for (int at = 0; at < SOFTMAX_COLUMNS / 16; ++at) {
    const float16 value = exp(vload16(at, from) - top);
    total += value;
    vstore16(value, at, to);
  }
  const float scale = 1.0f / sum_of(total);
  for (int at = 0; at < SOFTMAX_COLUMNS / 16; ++at) vstore16(vload16(at, to) * scale, at, to);
}

// Each item has a tile of 4 rows and 32 columns in registers.
kernel void mm(global const float* a, global const float* b, global float* out) {
  const size_t row = get_global_id(1) * 4, column = get_global_id(0) * 32;
  float16 tile[4][2];
  for (int i = 0; i < 4; ++i) tile[i][0] = tile[i][1] = 0;
  for (int k = 0; k < MM_SIZE; ++k) {
    const float16 b0 = vload16(0, b + k * MM_SIZE + column), b1 = vload16(1, b + k * MM_SIZE + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float16 left = a[(row + i) * MM_SIZE + k];
      tile[i][0] = fma(left, b0, tile[i][0]);
      tile[i][1] = fma(left, b1, tile[i][1]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    vstore16(tile[i][0], 0, out + (row + i) * MM_SIZE + column);
    vstore16(tile[i][1], 1, out + (row + i) * MM_SIZE + column);
  }
}

// 3 x 3, without a border. Each item has 4 channels of 16 neighbours in a row.
kernel void convolution(global const float* image, global const float* weight, global float* out) {
  const int x = get_global_id(0) * 16, y = get_global_id(1), channel = get_global_id(2) * 4;
  float16 sums[4] = {0, 0, 0, 0};
  for (int in = 0; in < CONV_CHANNELS; ++in) {
    for (int tap = 0; tap < 9; ++tap) {
      const int row = in * (CONV_SIZE + 2) + y + tap / 3;
      const float16 pixels = vload16(0, image + row * (CONV_SIZE + 2) + x + tap % 3);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float16 factor = weight[((channel + i) * CONV_CHANNELS + in) * 9 + tap];
        sums[i] = fma(factor, pixels, sums[i]);
      }
    }
  }
  for (int i = 0; i < 4; ++i) vstore16(sums[i], 0, out + ((channel + i) * CONV_SIZE + y) * CONV_SIZE + x);
}

// Each item has a query of a head with 64 elements, and goes over the keys once, with a running maximum.
kernel void attention(global const float* queries, global const float* keys, global const float* values,
                      global float* out, global float* logsumexp) {
  const size_t query = get_global_id(0), head = get_global_id(1);
  const size_t place = head * ATTENTION_LENGTH + query;
  keys += head * ATTENTION_LENGTH * 64;
  values += head * ATTENTION_LENGTH * 64;
  float16 q[4], result[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i) q[i] = vload16(i, queries + place * 64) * 0.125f;
  float top = -INFINITY, total = 0;
  for (int key = 0; key < ATTENTION_LENGTH; ++key) {
    float16 products = 0;
    for (int i = 0; i < 4; ++i) products = fma(q[i], vload16(i, keys + key * 64), products);
    const float score = sum_of(products);
    if (score > top) {
      const float scale = exp(top - score);
      for (int i = 0; i < 4; ++i) result[i] *= scale;
      total *= scale;
      top = score;
    }
    const float weight = exp(score - top);
    total += weight;
    for (int i = 0; i < 4; ++i) result[i] = fma((float16)weight, vload16(i, values + key * 64), result[i]);
  }
  for (int i = 0; i < 4; ++i) vstore16(result[i] / total, i, out + place * 64);
  logsumexp[place] = top + log(total);
}
