// Kernels for one instruction set, which the compiler's options choose and ISA names. Nothing of a standard library is
// instantiated here: the linker could take its copy for a processor without these instructions.
//
// The results for one row, token or query depend on nothing else that is computed at the same time: not on the number
// of rows of a tile, nor on how a sequence is cut into parts, nor on threads. So every sum is made in an order that
// depends on the inputs' or the keys' own position only.
#include "kernels.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace native {
namespace {

#if defined(__AVX512VNNI__)
constexpr int W = 16, kVecs = 4, kRowsOfF = 7, kVecsOfF = 4;  // W: floats of a vector
#elif defined(__AVX2__)
constexpr int W = 8, kVecs = 2, kRowsOfF = 6, kVecsOfF = 2;
#else
constexpr int W = 4, kVecs = 4, kRowsOfF = 6, kVecsOfF = 4;
#endif
typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef int8_t B __attribute__((vector_size(W)));
typedef uint16_t H __attribute__((vector_size(2 * W)));
typedef _Float16 H16 __attribute__((vector_size(2 * W)));
#define INLINE static inline __attribute__((always_inline))

template <class T>
INLINE T load(const void* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
INLINE void store(void* p, T v) {
  memcpy(p, &v, sizeof v);
}
INLINE F all(float x) { return x - F{}; }
INLINE I all(int32_t x) { return x - I{}; }
INLINE F max(F a, F b) { return a > b ? a : b; }
// GCC 12 takes loops over a vector's lanes apart into single floats.
INLINE float reduce_max(F v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float m = v[0];
  for (int i = 1; i < W; ++i) m = v[i] > m ? v[i] : m;
  return m;
#endif
}
INLINE float reduce_add(F v) {  // first halves plus second halves, until one is left
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s[W];
  store(s, v);
  for (int n = W / 2; n; n /= 2)
    for (int i = 0; i < n; ++i) s[i] += s[i + n];
  return s[0];
#endif
}
INLINE int32_t word(const int8_t* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return x;
}

INLINE B narrow(I v) {  // GCC 12 takes __builtin_convertvector apart
#if defined(__AVX512F__)
  return (B)_mm512_cvtepi32_epi8((__m512i)v);
#elif defined(__AVX2__)
  __m128i half = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  int64_t bytes = _mm_cvtsi128_si64(_mm_packs_epi16(half, half));
  return load<B>(&bytes);
#else
  return __builtin_convertvector(v, B);
#endif
}

// ---- Products with weights of 4 and 8 bits -------------------------------------------------------------------------

// Add to each output the products of 4 unsigned weights, a byte each, and 4 signed activations.
[[maybe_unused]] INLINE I dot4(I acc, I w, int32_t a) {
#if defined(__AVX512VNNI__)
  return (I)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(a));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (I)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)all(a));
#else
  for (int i = 0; i < W; ++i)
    for (int j = 0; j < 4; ++j) acc[i] += ((uint32_t)w[i] >> 8 * j & 255) * (int8_t)((uint32_t)a >> 8 * j);
  return acc;
#endif
}

// The same for weights of 8 bits, from which AVX2 subtracts the middle, 128: the weights' signs move to the
// activations, and the sum of two products, at most 2 * 128 * 127, fits into 16 bits.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool kSubtractsMiddle = true;
INLINE I dot4_wide(I acc, I w, int32_t a) {
  const __m256i weights = (__m256i)(w ^ all((int32_t)0x80808080)),
                signs = _mm256_sign_epi8(_mm256_set1_epi32(a), weights);
  return acc + (I)_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(weights), signs), _mm256_set1_epi16(1));
}
#else
constexpr bool kSubtractsMiddle = false;
INLINE I dot4_wide(I acc, I w, int32_t a) { return dot4(acc, w, a); }
#endif

// 8 inputs of 4 bits.
INLINE I dot8(I acc, I w, int32_t low, int32_t high) {
  I nibbles = all(0x0f0f0f0f);
#if defined(__AVX2__) && !defined(__AVX512VNNI__)  // sums of four products fit into 16 bits
  __m256i a = _mm256_maddubs_epi16((__m256i)(w & nibbles), _mm256_set1_epi32(low));
  __m256i b = _mm256_maddubs_epi16((__m256i)((w >> 4) & nibbles), _mm256_set1_epi32(high));
  return acc + (I)_mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
#else
  return dot4(dot4(acc, w & nibbles, low), (w >> 4) & nibbles, high);
#endif
}

template <int BITS, int ROWS, int VECS>
void tile(const Product& p, int64_t panel, int64_t row, int vec) {
  constexpr int kInputs = 32 / BITS;  // of a step
  constexpr int32_t kMiddle = BITS == 8 && kSubtractsMiddle ? 0 : 1 << (BITS - 1);
  const int64_t depth = p.block * p.blocks, outputs = p.outputs;
  const uint8_t* w = p.weights + (panel * depth + p.begin * p.block) * kPanel * BITS / 8 + vec * W * 4;
  const int64_t first_scale = (panel * p.blocks + p.begin) * kPanel + vec * W;
  const float* scales = p.scales + first_scale;
  const float* offsets = p.offsets ? p.offsets + first_scale : nullptr;
  const int8_t* a = p.activations + row * depth + p.begin * p.block;
  // The outputs are fetched in the meantime, because the stores of sums to the stack would wait behind theirs.
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) __builtin_prefetch(p.out + (row + r) * p.stride + panel * kPanel + (vec + v) * W, 1);
  F total[ROWS][VECS] = {};
  for (int64_t b = p.begin; b < p.end; ++b) {
    I acc[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECS; ++v) acc[r][v] = all(-kMiddle * p.activation_sums[(row + r) * p.blocks + b]);
    for (int64_t k = 0; k < p.block; k += kInputs, w += 4 * kPanel) {
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) {
        I x = load<I>(w + v * W * 4);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
          const int8_t* at = a + r * depth + k;
          acc[r][v] = BITS == 4 ? dot8(acc[r][v], x, word(at), word(at + 4)) : dot4_wide(acc[r][v], x, word(at));
        }
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      const float scale = p.activation_scales[(row + r) * p.blocks + b];
      for (int v = 0; v < VECS; ++v)
        total[r][v] += __builtin_convertvector(acc[r][v], F) * (load<F>(scales + v * W) * scale);
      if (offsets) {
        const float sum = scale * (float)p.activation_sums[(row + r) * p.blocks + b];
        for (int v = 0; v < VECS; ++v) total[r][v] += load<F>(offsets + v * W) * sum;
      }
    }
    scales += kPanel;
    if (offsets) offsets += kPanel;
    a += p.block;
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) {
      int64_t first = panel * kPanel + (vec + v) * W, left = outputs - first;
      float* out = p.out + (row + r) * p.stride + first;
      F value = total[r][v];
      if (left >= W) {
        if (p.adds) value = load<F>(out) + value;
        if (p.bias) value += load<F>(p.bias + first);
        store(out, value);
      } else {
        for (int i = 0; i < left; ++i)
          out[i] = (p.adds ? out[i] + value[i] : value[i]) + (p.bias ? p.bias[first + i] : 0);
      }
    }
}

template <int BITS, int ROWS>
void rows_of(const Product& p, int64_t panel, int64_t row, int64_t rows) {
  constexpr int kMost = ROWS <= 2 && W == 8 ? 4 : kVecs;  // the registers hold the sums of ROWS * kMost vectors
  if (rows == ROWS) {
    for (int v = 0; v < kPanel / W; v += kMost) tile<BITS, ROWS, kMost>(p, panel, row, v);
  } else if constexpr (ROWS > 1) {
    rows_of<BITS, ROWS - 1>(p, panel, row, rows);
  }
}

void product(const Product& p, int64_t panel, int64_t row, int64_t end) {
  for (; row < end; row += 4) {
    int64_t rows = end - row < 4 ? end - row : 4;
    p.bits == 4 ? rows_of<4, 4>(p, panel, row, rows) : rows_of<8, 4>(p, panel, row, rows);
  }
}

void quantize(const float* x, int64_t size, int64_t block, int64_t blocks, int8_t* q, float* scale, int32_t* sum) {
  const F magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  for (int64_t b = 0; b < blocks; ++b, x += block, q += block, size -= block) {
    int64_t n = size < block ? size : block, i = 0;
    // The largest absolute value, by its bits: those of infinity and NaN are larger than those of numbers.
    I largest = {};
    for (; i + W <= n; i += W) {
      I v = load<I>(x + i) & 0x7fffffff;
      largest = v > largest ? v : largest;
    }
    for (; i < n; ++i) {
      int32_t v = load<int32_t>(x + i) & 0x7fffffff;
      largest[0] = v > largest[0] ? v : largest[0];
    }
    for (i = 1; i < W; ++i) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    const int32_t bits = largest[0];
    const float top = load<float>(&bits);
    if (bits >= 0x7f800000) {  // the row's results are NaN
      memset(q, 0, block);
      scale[b] = NAN;
      sum[b] = 0;
      continue;
    }
    float inverse = top > 1e-36f ? 127 / top : 0;  // a number
    I total = {};
    int32_t rest = 0;
    for (i = 0; i + W <= n; i += W) {
      I v = (I)(load<F>(x + i) * inverse + magic) - (I)magic;
      total += v;
      store(q + i, narrow(v));
    }
    for (; i < n; ++i) rest += q[i] = (int8_t)lrintf(x[i] * inverse);
    if (n < block) memset(q + n, 0, block - n);
    for (i = 0; i < W; ++i) rest += total[i];
    scale[b] = top / 127;
    sum[b] = rest;
  }
}

// ---- Attention -----------------------------------------------------------------------------------------------------

// e^x for x <= 0; 0 below -80.
INLINE F exp_of(F x) {
  const F magic = all(12582912.0f);
  F shifted = x * 1.44269504f + magic, n = shifted - magic;
  F r = x - n * 0.693145752f - n * 1.42860677e-6f;
  F y = r * 1.9875691e-4f + 1.3981999e-3f;
  y = y * r + 8.3334519e-3f;
  y = y * r + 4.1665796e-2f;
  y = y * r + 1.6666666e-1f;
  y = y * r + 0.5f;
  y = y * r * r + r + 1.0f;
  F power = (F)(((U)shifted - (U)magic + 127) << 23);  // wraps around below -80
  return x < -80.0f ? F{} : y * power;
}

// c [ROWS][VECS * W] += a [ROWS][depth] * b [depth][VECS * W].
template <int ROWS, int VECS>
void multiply_tile(const float* a, const int64_t* at, const float* b, int64_t ldb, float* c, int64_t ldc, int depth) {
  F acc[ROWS][VECS];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) acc[r][v] = load<F>(c + r * ldc + v * W);
  for (int k = 0; k < depth; ++k) {
    F row[VECS];
    for (int v = 0; v < VECS; ++v) row[v] = load<F>(b + k * ldb + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v) acc[r][v] += row[v] * a[at[r] + k];
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) store(c + r * ldc + v * W, acc[r][v]);
}

#if defined(__AVX512BF16__)
// The same for pairs of 16-bit values: a [ROWS][depth][2], b [depth][VECS * W][2].
template <int ROWS, int VECS>
void multiply_tile(const uint32_t* a, const int64_t* at, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                   int depth) {
  F acc[ROWS][VECS];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) acc[r][v] = load<F>(c + r * ldc + v * W);
  for (int k = 0; k < depth; ++k) {
    I row[VECS];
    for (int v = 0; v < VECS; ++v) row[v] = load<I>(b + k * ldb + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECS; ++v)
        acc[r][v] = (F)_mm512_dpbf16_ps((__m512)acc[r][v], (__m512bh)row[v], (__m512bh)all((int32_t)a[at[r] + k]));
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) store(c + r * ldc + v * W, acc[r][v]);
}
#endif

template <int ROWS, int VECS, class T>
void multiply_rest(const T* a, const int64_t* at, const T* b, int64_t ldb, float* c, int64_t ldc, int depth, int rows) {
  if (rows == ROWS) multiply_tile<ROWS, VECS>(a, at, b, ldb, c, ldc, depth);
  else if constexpr (ROWS > 1) multiply_rest<ROWS - 1, VECS>(a, at, b, ldb, c, ldc, depth, rows);
}

// c [rows][columns] += a * b, row r of a at a + at[r]. `columns` is a multiple of 16.
template <class T>
void multiply(const T* a, const int64_t* at, const T* b, int64_t ldb, float* c, int64_t ldc, int64_t rows, int columns,
              int depth) {
  for (int64_t r = 0; r < rows; r += kRowsOfF) {
    int n = (int)(rows - r < kRowsOfF ? rows - r : kRowsOfF), j = 0;
    float* to = c + r * ldc;
    for (; j + kVecsOfF * W <= columns; j += kVecsOfF * W)
      multiply_rest<kRowsOfF, kVecsOfF>(a, at + r, b + j, ldb, to + j, ldc, depth, n);
    for (; j < columns; j += W) multiply_rest<kRowsOfF, 1>(a, at + r, b + j, ldb, to + j, ldc, depth, n);
  }
}

// Transpose 32-bit values [64][size] into [size][64].
void transpose(const uint32_t* from, int64_t size, uint32_t* to) {
#if defined(__AVX512F__)
  for (int64_t d = 0; d + 16 <= size; d += 16)
    for (int n = 0; n < kKeyBlock; n += 16) {
      __m512i r[16], t[16];
      for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + (n + i) * size + d);
      for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
      }
      for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
          r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
          r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
      for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; ++j) {
          t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
          t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
        }
      for (int j = 0; j < 8; ++j) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
      }
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + (d + i) * kKeyBlock + n, r[i]);
    }
  const int64_t first = size / 16 * 16;
#else
  const int64_t first = 0;
#endif
  for (int n = 0; n < kKeyBlock; n += 4)
    for (int64_t d = first; d < size; ++d)
      for (int i = 0; i < 4; ++i) to[d * kKeyBlock + n + i] = from[(n + i) * size + d];
}

[[maybe_unused]] INLINE uint16_t bfloat_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void to_float(const void* from, CacheType type, int64_t size, float* to) {
  if (type == kCacheFloat) memcpy(to, from, size * 4);
  else
    for (int64_t i = 0; i < size; i += W) {
      H half = load<H>((const uint16_t*)from + i);
      F wide;
      if (type == kCacheBfloat) wide = (F)(__builtin_convertvector(half, I) << 16);
#if defined(__AVX512F__)
      else wide = (F)_mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
      else wide = (F)_mm256_cvtph_ps((__m128i)half);
#else
      else wide = __builtin_convertvector((H16)half, F);
#endif
      store(to + i, wide);
    }
}

void to_bfloat(const void* from, CacheType type, int64_t size, uint16_t* to) {
  if (type == kCacheBfloat) {
    memcpy(to, from, size * 2);
    return;
  }
  float wide[W];
  for (int64_t i = 0; i < size; i += W) {
    to_float((const char*)from + i * (type == kCacheFloat ? 4 : 2), type, W, wide);
#if defined(__AVX512BF16__)
    store(to + i, _mm512_cvtneps_pbh(_mm512_loadu_ps(wide)));
#else
    for (int j = 0; j < W; ++j) to[i + j] = bfloat_of(wide[j]);
#endif
  }
}

// tanh, from e^(-2|x|).
INLINE F tanh_of(F x) {
  F e = exp_of(-2.0f * max(x, -x)), y = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -y : y;
}

INLINE float exp_of_one(float x) { return exp_of(all(x))[0]; }

INLINE F sigmoid_of(F x) {
  F e = exp_of(-max(x, -x));
  return (x > 0.0f ? all(1.0f) : e) / (e + 1.0f);
}

void activate(const Activation& p, const float* gates, const float* values, float* out) {
  for (int i = 0; i < kPanel; i += W) {
    F x = load<F>(gates + i);
    switch (p.kind) {
      case kSwiglu: {
        F value = load<F>(values + i), limit = all(p.limit), gate = p.limits_result ? x : x < limit ? x : limit;
        value = value < -limit ? -limit : value > limit ? limit : value;
        x = gate * sigmoid_of(gate * p.alpha);
        if (p.limits_result) x = x < limit ? x : limit;
        x = x * (value + p.beta);
        break;
      }
      case kRelu:
        x = x > 0.0f ? x : F{};
        break;
      case kGelu:
        x = x * 0.5f * (tanh_of((x + x * x * x * 0.044715f) * 0.7978845608f) + 1.0f);
        break;
      case kSilu:
        x = x * sigmoid_of(x);
        break;
      case kIdentity:
        break;
    }
    store(out + i, x);
  }
}

// ---- Products in floats --------------------------------------------------------------------------------------------

// A quantized weight that lies at `shift` of its word, of 4 or 8 bits. The offset contains that of the middle.
template <int BITS>
INLINE F weight_of(I word, int shift, F scale, F offset) {
  return __builtin_convertvector(word >> shift & ((1 << BITS) - 1), F) * scale + offset;
}

// The bits by which a word's input `j` is shifted.
template <int BITS>
constexpr int shift_of(int j) {
  return BITS == 8 ? 8 * j : j < 4 ? 8 * j : 8 * (j - 4) + 4;
}

template <int BITS>
INLINE F offset_of(const FloatProduct& p, int64_t at, F scale) {
  return (p.offsets ? load<F>(p.offsets + at) : F{}) - scale * (float)(1 << (BITS - 1));
}

// Widen the weights of inputs from `first`, a multiple of kInputBlock, to floats [inputs][64].
template <int BITS>
void widen_integers(const FloatProduct& p, int64_t panel, int64_t first, int inputs, float* to) {
  constexpr int kInputs = 32 / BITS;
  const uint8_t* w = (const uint8_t*)p.weights + (panel * p.block * p.blocks + first) * kPanel * BITS / 8;
  for (int k = 0; k < inputs; k += kInputs, w += 4 * kPanel) {
    const int64_t at = (panel * p.blocks + (first + k) / p.block) * kPanel;
    for (int v = 0; v < kPanel; v += W) {
      const I x = load<I>(w + 4 * v);
      const F scale = load<F>(p.scales + at + v), offset = offset_of<BITS>(p, at + v, scale);
#pragma GCC unroll 8
      for (int j = 0; j < kInputs; ++j)
        store(to + (k + j) * kPanel + v, weight_of<BITS>(x, shift_of<BITS>(j), scale, offset));
    }
  }
}

void widen(const FloatProduct& p, int64_t panel, int64_t first, int inputs, float* to) {
  if (p.bits == 16)
    to_float((const uint16_t*)p.weights + (panel * p.depth + first) * kPanel, p.type, (int64_t)inputs * kPanel, to);
  else p.bits == 4 ? widen_integers<4>(p, panel, first, inputs, to) : widen_integers<8>(p, panel, first, inputs, to);
}

// Add the sums of inputs from `first` to those before them.
template <int ROWS, int VECS>
INLINE void add_sums(const FloatProduct& p, const F (&acc)[ROWS][VECS], int64_t panel, int64_t row, int64_t first,
                     int inputs, int vec) {
  const bool is_first = first == p.begin, is_last = p.bias && first + inputs == p.end;
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECS; ++v) {
      const int64_t output = panel * kPanel + (vec + v) * W, left = p.outputs - output;
      float* out = p.out + (row + r) * p.stride + output;
      F value = acc[r][v];
      if (left >= W) {
        if (!is_first) value = load<F>(out) + value;
        if (is_last) value += load<F>(p.bias + output);
        store(out, value);
      } else {
        for (int i = 0; i < left; ++i) {
          float one = is_first ? value[i] : out[i] + value[i];
          out[i] = is_last ? one + p.bias[output + i] : one;
        }
      }
    }
}

// The products of inputs from `first`. x [ROWS][inputs], w [inputs][64].
template <int ROWS, int VECS>
void tile_of_floats(const FloatProduct& p, const float* x, const float* w, int64_t panel, int64_t row, int64_t first,
                    int inputs, int vec) {
  F acc[ROWS][VECS] = {};
  w += vec * W;
  for (int k = 0; k < inputs; ++k) {
    F weights[VECS];
    for (int v = 0; v < VECS; ++v) weights[v] = load<F>(w + k * kPanel + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) acc[r][v] += weights[v] * x[r * p.depth + k];
  }
  add_sums<ROWS, VECS>(p, acc, panel, row, first, inputs, vec);
}

// The same for one row of a matrix of integers, whose weights need not be kept.
template <int BITS>
void row_of_integers(const FloatProduct& p, int64_t panel, int64_t row) {
  constexpr int kInputs = 32 / BITS, kMost = W == 16 ? 4 : 2;
  const float* x = p.activations + row * p.depth;
  for (int64_t first = p.begin; first < p.end; first += kInputBlock) {
    const int inputs = (int)(p.end - first < kInputBlock ? p.end - first : kInputBlock);
    for (int vec = 0; vec < kPanel / W; vec += kMost) {
      const uint8_t* w =
          (const uint8_t*)p.weights + (panel * p.block * p.blocks + first) * kPanel * BITS / 8 + 4 * vec * W;
      F acc[1][kMost] = {};
      for (int k = 0; k < inputs; k += kInputs, w += 4 * kPanel) {
        const int64_t at = (panel * p.blocks + (first + k) / p.block) * kPanel + vec * W;
        const int left = inputs - k;
        I words[kMost];
        F scales[kMost], offsets[kMost];
        for (int v = 0; v < kMost; ++v) {
          words[v] = load<I>(w + 4 * v * W);
          scales[v] = load<F>(p.scales + at + v * W), offsets[v] = offset_of<BITS>(p, at + v * W, scales[v]);
        }
#pragma GCC unroll 8
        for (int j = 0; j < kInputs; ++j) {
          if (j >= left) break;
#pragma GCC unroll 4
          for (int v = 0; v < kMost; ++v)
            acc[0][v] += weight_of<BITS>(words[v], shift_of<BITS>(j), scales[v], offsets[v]) * x[first + k + j];
        }
      }
      add_sums<1, kMost>(p, acc, panel, row, first, inputs, vec);
    }
  }
}

template <int ROWS>
void rows_of_floats(const FloatProduct& p, const float* x, const float* w, int64_t panel, int64_t row, int64_t rows,
                    int64_t first, int inputs) {
  // The registers hold the sums of ROWS * kMost vectors.
  constexpr int kMost = kVecsOfF * (ROWS == 1 ? 4 : ROWS <= 3 ? 2 : 1), kFit = kMost < kPanel / W ? kMost : kPanel / W;
  if (rows == ROWS) {
    for (int v = 0; v < kPanel / W; v += kFit) tile_of_floats<ROWS, kFit>(p, x, w, panel, row, first, inputs, v);
  } else if constexpr (ROWS > 1) {
    rows_of_floats<ROWS - 1>(p, x, w, panel, row, rows, first, inputs);
  }
}

void product_of_floats(const FloatProduct& p, int64_t panel, int64_t row, int64_t end) {
  if (p.bits <= 8 && end - row == 1)
    return p.bits == 4 ? row_of_integers<4>(p, panel, row) : row_of_integers<8>(p, panel, row);
  alignas(64) float wide[kInputBlock * kPanel];
  for (int64_t first = p.begin; first < p.end; first += kInputBlock) {
    const int inputs = (int)(p.end - first < kInputBlock ? p.end - first : kInputBlock);
    const float* w = wide;
    if (p.bits == 32) w = (const float*)p.weights + (panel * p.depth + first) * kPanel;
    else widen(p, panel, first, inputs, wide);
    if (W < 16 && p.bits == 32 && end - row > 1) {
      // Tiles that are narrower than a panel would read memory with gaps.
      memcpy(wide, w, inputs * kPanel * sizeof(float));
      w = wide;
    }
    for (int64_t r = row; r < end;) {
      // The last rows are divided evenly: a tile of one row takes nearly as long as one of three.
      int64_t left = end - r, rows = left <= kRowsOfF ? left : left < 2 * kRowsOfF ? (left + 1) / 2 : kRowsOfF;
      rows_of_floats<kRowsOfF>(p, p.activations + r * p.depth + first, w, panel, r, rows, first, inputs);
      r += rows;
    }
  }
}

// ---- Sums of parts of the inputs -----------------------------------------------------------------------------------

void add(const float* sums, const float* bias, int64_t rows, int64_t columns, float* out, int64_t stride) {
  for (; rows > 0; --rows, sums += kPanel, out += stride) {
    int64_t i = 0;
    for (; i + W <= columns; i += W) {
      F value = load<F>(out + i) + load<F>(sums + i);
      if (bias) value += load<F>(bias + i);
      store(out + i, value);
    }
    for (; i < columns; ++i) {
      const float value = out[i] + sums[i];
      out[i] = bias ? value + bias[i] : value;
    }
  }
}

// ---- Attention over blocks of keys ---------------------------------------------------------------------------------

// Keys or values of 8 bits as floats, without their scales: those of a row of scores or weights are multiplied instead.
INLINE F widened(const int8_t* from) {
#if defined(__AVX512F__)
  return (F)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
  return (F)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  return __builtin_convertvector(__builtin_convertvector(load<B>(from), I), F);
#endif
}

void widen_bytes(const int8_t* from, int count, int size, float* to) {
  for (int n = 0; n < count; ++n, from += bytes_of_head(kCacheInt8, size))
    for (int d = 0; d < size; d += W) store(to + n * size + d, widened(from + d));
}

// The same as bfloat16 numbers, which hold them exactly.
void widen_bytes(const int8_t* from, int count, int size, uint16_t* to) {
  float wide[W];
  for (int n = 0; n < count; ++n, from += bytes_of_head(kCacheInt8, size))
    for (int d = 0; d < size; d += W) {
      store(wide, widened(from + d));
      to_bfloat(wide, kCacheFloat, W, to + n * size + d);
    }
}

// The same transposed, [size][64]; keys behind `count` are zero.
void widen_transposed(const int8_t* from, int count, int size, float* to) {
  typedef int8_t Bytes __attribute__((vector_size(16)));
  const int64_t stride = bytes_of_head(kCacheInt8, size);
  for (int n = 0; n < kKeyBlock; n += 16)
    for (int d = 0; d < size; d += 16) {
      Bytes rows[16], next[16];
      for (int i = 0; i < 16; ++i) rows[i] = n + i < count ? load<Bytes>(from + (n + i) * stride + d) : Bytes{};
      // Each round moves the highest bit of a byte's row and column, eight bits in all, to the lowest place.
      for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 8; ++i) {
          const Bytes a = rows[i], b = rows[i + 8];
          next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
          next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(rows, next, sizeof rows);
      }
      for (int i = 0; i < 16; ++i) {
        int8_t of_keys[16];
        store(of_keys, rows[i]);
        for (int j = 0; j < 16; j += W) store(to + (d + i) * kKeyBlock + n + j, widened(of_keys + j));
      }
    }
}

// The scales of keys or values; those behind `count` are zero.
void read_scales(const int8_t* from, int count, int size, float* to) {
  const int64_t stride = bytes_of_head(kCacheInt8, size);
  for (int n = 0; n < kKeyBlock; ++n) to[n] = n < count ? load<float>(from + n * stride + size) : 0;
}

// Rows [count][size] of keys or values as floats; the rows behind them up to kKeyBlock are zero.
INLINE const float* as_floats(const void* from, CacheType type, int count, int size, float* to) {
  if (type == kCacheFloat && count == kKeyBlock) return (const float*)from;
  to_float(from, type, (int64_t)count * size, to);
  memset(to + count * size, 0, (kKeyBlock - count) * size * 4);
  return to;
}

void attend(const Attend& p) {
  const int size = p.head_size;
  const bool is_int8 = p.type == kCacheInt8;
  const int64_t queries = (int64_t)p.tokens * p.group, stride = bytes_of_head(p.type, size);
  alignas(64) float key_scales[kKeyBlock], value_scales[kKeyBlock];  // with kCacheInt8
  float* keys = p.scratch;                                           // [64][size]
  float* turned = keys + kKeyBlock * size;                           // [size][64]
  float* values = turned + kKeyBlock * size;                         // [64][size]
  float* scores = values + kKeyBlock * size;                         // [queries][64]
  float* halves = scores + queries * kKeyBlock;                      // the queries in bfloat16
  int64_t* at = (int64_t*)(halves + queries * size);                 // where each query begins, and its scores
  int64_t* at_scores = at + queries;
  for (int64_t m = 0; m < queries; ++m) {
    p.top[m] = -INFINITY, p.sum[m] = 0;
    int64_t from = m / p.group * p.token_stride + m % p.group * size;
    at[m] = p.bf16 ? m * size / 2 : from;
    at_scores[m] = m * kKeyBlock / (p.bf16 ? 2 : 1);
    if (p.bf16) to_bfloat(p.queries + from, kCacheFloat, size, (uint16_t*)halves + m * size);
  }
  const auto multiply_pairs = [&](const float* a, const int64_t* at_rows, int64_t lda, const float* b, int64_t ldb,
                                  float* c, int64_t ldc, int64_t rows, int columns, int depth) {
    const auto *pairs = (const uint32_t*)a, *others = (const uint32_t*)b;
    // The sizes alone decide, so that a token is computed in one way, next to whatever others.
    if (p.multiply_pairs && size % 32 == 0)
      return p.multiply_pairs(pairs + at_rows[0], lda, others, ldb, c, ldc, rows, columns, depth);
#if defined(__AVX512BF16__)
    multiply(pairs, at_rows, others, ldb, c, ldc, rows, columns, depth);
#endif
  };
  memset(p.acc, 0, queries * size * 4);
  for (int64_t key = p.begin; key < p.end; key += kKeyBlock) {
    const int count = (int)(p.end - key < kKeyBlock ? p.end - key : kKeyBlock);
    // The queries of tokens before this block's first key read none of it.
    const int64_t skipped = key > p.first ? (key - p.first) * p.group : 0, left = queries - skipped;
    if (left <= 0) break;
    const char *k = (const char*)p.keys + key * stride, *v = (const char*)p.values + key * stride;
    memset(scores + skipped * kKeyBlock, 0, left * kKeyBlock * 4);
    const float* values_at = values;
    if (is_int8) {
      read_scales((const int8_t*)k, count, size, key_scales);
      read_scales((const int8_t*)v, count, size, value_scales);
    }
    if (p.bf16) {
      if (is_int8) widen_bytes((const int8_t*)k, count, size, (uint16_t*)keys);
      else to_bfloat(k, p.type, (int64_t)count * size, (uint16_t*)keys);
      memset((uint16_t*)keys + count * size, 0, (kKeyBlock - count) * size * 2);
      transpose((const uint32_t*)keys, size / 2, (uint32_t*)turned);
      multiply_pairs(halves, at + skipped, size / 2, turned, kKeyBlock, scores + skipped * kKeyBlock, kKeyBlock, left,
                     kKeyBlock, size / 2);
      if (is_int8) widen_bytes((const int8_t*)v, count, size, (uint16_t*)keys);
      else to_bfloat(v, p.type, (int64_t)count * size, (uint16_t*)keys);
      memset((uint16_t*)keys + count * size, 0, (kKeyBlock - count) * size * 2);
      uint16_t *from = (uint16_t*)keys, *to = (uint16_t*)values;
      for (int n = 0; n < kKeyBlock; n += 2)
        for (int d = 0; d < size; d += W) {
          I one = __builtin_convertvector(load<H>(from + n * size + d), I);
          I other = __builtin_convertvector(load<H>(from + (n + 1) * size + d), I);
          store(to + n * size + 2 * d, one | other << 16);
        }
    } else {
      if (is_int8) widen_transposed((const int8_t*)k, count, size, turned);
      else transpose((const uint32_t*)as_floats(k, p.type, count, size, keys), size, (uint32_t*)turned);
      multiply(p.queries, at + skipped, turned, kKeyBlock, scores + skipped * kKeyBlock, kKeyBlock, left, kKeyBlock,
               size);
      if (p.type == kCacheFloat) values_at = (const float*)v;
      else if (is_int8) widen_bytes((const int8_t*)v, count, size, values);
      else to_float(v, p.type, (int64_t)count * size, values);
    }
    for (int64_t m = skipped; m < queries; ++m) {
      float* s = scores + m * kKeyBlock;
      const int64_t position = p.first + m / p.group;
      // Of this block, the query reads the keys from `unread` to `seen`.
      const int64_t seen = position + 1 - key < count ? position + 1 - key : count;
      const int64_t unread = p.window && position + 1 - p.window > key ? position + 1 - p.window - key : 0;
      if (unread >= seen) {
        // The product below adds nothing.
        if (p.bf16) memset((uint16_t*)scores + m * kKeyBlock, 0, kKeyBlock * 2);
        else memset(s, 0, kKeyBlock * 4);
        continue;
      }
      if (is_int8)
        for (int j = 0; j < kKeyBlock; j += W) store(s + j, load<F>(s + j) * load<F>(key_scales + j));
      if (p.softcap > 0)
        for (int j = 0; j < kKeyBlock; j += W) store(s + j, tanh_of(load<F>(s + j) / p.softcap) * p.softcap);
      for (int64_t j = 0; j < unread; ++j) s[j] = -INFINITY;
      for (int64_t j = seen; j < kKeyBlock; ++j) s[j] = -INFINITY;
      F best = load<F>(s);
      for (int j = W; j < kKeyBlock; j += W) best = max(best, load<F>(s + j));
      const float top = reduce_max(best);
      if (top > p.top[m]) {
        const float factor = exp_of_one(p.top[m] - top);
        p.top[m] = top, p.sum[m] *= factor;
        for (int d = 0; d < size; d += W) store(p.acc + m * size + d, load<F>(p.acc + m * size + d) * factor);
      }
      F sum = {};
      for (int j = 0; j < kKeyBlock; j += W) {
        F e = exp_of(load<F>(s + j) - p.top[m]);
        sum += e;
        store(s + j, is_int8 ? e * load<F>(value_scales + j) : e);
      }
      p.sum[m] += reduce_add(sum);
      if (p.bf16) to_bfloat(s, kCacheFloat, kKeyBlock, (uint16_t*)scores + m * kKeyBlock);
    }
    if (p.bf16)
      multiply_pairs(scores, at_scores + skipped, kKeyBlock / 2, values, size, p.acc + skipped * size, size, left, size,
                     kKeyBlock / 2);
    else multiply(scores, at_scores + skipped, values_at, size, p.acc + skipped * size, size, left, size, count);
  }
}

void merge(int64_t queries, int size, float* top, float* sum, float* acc, const float* top2, const float* sum2,
           const float* acc2) {
  for (int64_t m = 0; m < queries; ++m) {
    if (!(sum2[m] > 0)) continue;
    const float best = top[m] > top2[m] ? top[m] : top2[m];
    const float a = exp_of_one(top[m] - best), b = exp_of_one(top2[m] - best);
    top[m] = best, sum[m] = sum[m] * a + sum2[m] * b;
    for (int d = 0; d < size; ++d) acc[m * size + d] = acc[m * size + d] * a + acc2[m * size + d] * b;
  }
}

void finish(int size, float top, float sum, const float* acc, const float* sink, float* out) {
  float factor = 1;
  if (sink) {
    const float best = top > *sink ? top : *sink;
    factor = exp_of_one(top - best);
    sum = sum * factor + exp_of_one(*sink - best);
  }
  factor /= sum;
  for (int d = 0; d < size; ++d) out[d] = acc[d] * factor;
}

#include "low_rank_kernel.h"
#include "state_kernels.h"

}  // namespace

#define JOIN(a, b) a##b
#define NAME(isa) JOIN(kernels_, isa)
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
extern const Kernels NAME(ISA);
const Kernels NAME(ISA) = {TEXT_OF(ISA), quantize, product, product_of_floats, add, activate, attend, merge,
                           finish,       convolve, recur,   low_rank,          12,
#if defined(__AVX512BF16__)
                           true
#else
                           false
#endif
};

}  // namespace native
