// The interface between the operators (operators.cpp) and the kernels (kernels.cpp), which are compiled once for each
// instruction set. No header of the C++ standard library is used, so that any compiler can build the library without
// one.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace native {

constexpr int kPanel = 64;  // outputs of one panel of packed weights
// Inputs whose products in floats are summed apart before they are added to those before them. Their weights, 64
// outputs as floats, stay in the first-level cache.
constexpr int kInputBlock = 128;
constexpr int kKeyBlock = 64;  // keys that attention reads at once; blocks begin at multiples of it
// Keys whose sums are made apart and then merged. Chunks begin at multiples of it, so that the order of all sums of a
// token depends on its position alone, whether or not threads share its keys.
constexpr int kKeyChunk = 512;

// A product of activations, rounded to 8 bits per row and block of inputs, with packed weights. Weights are unsigned
// around the middle 8 (4 bits) or 128 (8 bits):
//   4 bits: [panel][inputs / 8][64 outputs][4 bytes]; byte j has input 8g + j in its lower and 8g + 4 + j in its upper
//   half; 8 bits: [panel][inputs / 4][64 outputs][4 bytes].
struct Product {
  const int8_t* activations;       // [rows][blocks * block]
  const float* activation_scales;  // [rows][blocks]
  const int32_t* activation_sums;  // [rows][blocks]
  const uint8_t* weights;
  const float* scales;  // [panel][blocks][64]
  // Added to each weight of a block, [panel][blocks][64], or null: a zero point z is scale * (middle - z), and a
  // minimum of GGUF's formats is the minimum plus scale * middle.
  const float* offsets;
  const float* bias;  // [outputs] or null
  float* out;         // [rows][stride]
  int64_t outputs, stride, block, blocks;
  int64_t begin, end;  // the blocks whose products are added up
  bool adds;           // to the outputs, in place of writing them; the bias comes last
  int bits;
};

// With kCacheInt8, a head's values, from -127 to 127, are followed by the float that they are multiplied with.
enum CacheType { kCacheFloat, kCacheHalf, kCacheBfloat, kCacheInt8 };

// Bytes of one head of a token's keys or values in the cache.
inline int64_t bytes_of_head(CacheType type, int64_t size) {
  return type == kCacheInt8 ? size + (int64_t)sizeof(float) : size * (type == kCacheFloat ? 4 : 2);
}

// A product of activations in floats. Weights are floats, of 16 bits, or unsigned integers as those of Product:
//   floats and 16 bits: [panel][inputs][64 outputs].
struct FloatProduct {
  const float* activations;  // [rows][depth]
  const void* weights;
  int bits;                              // 4, 8, 16 or 32
  CacheType type;                        // of 16 bits
  const float *scales, *offsets, *bias;  // as in Product; scales and offsets with 4 and 8 bits only
  float* out;                            // [rows][stride]
  int64_t outputs, stride, depth, block, blocks;
  int64_t begin, end;  // the inputs whose products are added up; `begin` is a multiple of kInputBlock
};

// What experts compute of the values of a gate, or of single values, with linear ones.
enum ActivationKind { kSwiglu, kRelu, kGelu, kSilu, kIdentity };
struct Activation {
  ActivationKind kind;
  // Of kSwiglu, min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (value within ±limit + beta); with
  // `limits_result`, the gate's product with its sigmoid is limited in place of the gate.
  float alpha, beta, limit;
  bool limits_result;
};

// Add the product of pairs of bfloat16 numbers, a [rows][depth][2] by b [depth][columns][2], to c [rows][columns]. The
// strides are those of a row in 32-bit values. Of the sizes, `columns` and `depth` are multiples of 16.
using MultiplyPairs = void (*)(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                               int64_t rows, int columns, int depth);

// Consecutive tokens of one sequence, whose query heads share one head of keys and values.
struct Attend {
  const float* queries;  // rotated and scaled; head g of token t at queries + t * token_stride + g * head_size
  int64_t token_stride;
  int group, head_size, tokens;
  const void *keys, *values;  // [length][bytes_of_head]
  CacheType type;
  bool bf16;  // multiply in bfloat16
  // Does that in place of the kernel's own instructions, if it is not null and the sizes allow it.
  MultiplyPairs multiply_pairs;
  float softcap;       // scores become softcap * tanh(score / softcap); 0 for none
  int64_t window;      // a token reads this many of the last keys, itself included; 0 for all
  int64_t first;       // the position of the first token
  int64_t begin, end;  // the keys to read, within one chunk; `begin` is a multiple of kKeyBlock
  float* scratch;      // scratch_floats(tokens * group, head_size)
  // The results, not yet divided: the largest score and the sum of the weights [tokens * group], and the weighted sum
  // of values [tokens * group][head_size]. A query that reads none of the keys has the largest score -infinity.
  float *top, *sum, *acc;
};

// A causal convolution of some channels over the tokens of one row. Tokens, results, weights and states have `stride`
// values between one and the next.
struct Convolve {
  const float *tokens, *weights, *bias;  // [num_tokens], [width], and one, or null
  float *out, *state;                    // [num_tokens] and [width - 1]: the last inputs before the row's tokens
  int64_t stride, channels, num_tokens;
  int64_t committed;  // the state becomes the one behind this many tokens; 0 leaves it
  int width;
  bool silu;
};

constexpr int kColumns = 32;  // columns of a state of linear attention that are computed at once

// Linear attention over the tokens of one row, of one head and some columns of its state.
struct Recur {
  const float *queries, *keys, *values, *decays, *rates;  // of the first token; without decays or rates null
  int64_t query_stride, key_stride, value_stride, decay_stride, rate_stride, out_stride;  // between tokens
  float* out;      // of the first token and query head; those of the next heads follow
  float* state;    // [size][value_size], from the first column on
  float* scratch;  // recur_floats(size)
  int size, value_size, columns, num_queries;
  int64_t num_tokens, committed;  // as in Convolve
  float scale;
  bool decays_by_key;  // a decay for each of `size` rows of the state, in place of one
};

inline int64_t recur_floats(int64_t size) { return size * (kColumns + 1) + 64; }

// A path of two small matrices next to a large one, for some tokens: out = x · aᵀ · b.
struct LowRank {
  const float *x, *a, *b;  // [tokens][inputs], [ranks][inputs], [ranks][outputs]
  float* out;              // [tokens][outputs]
  float* scratch;          // tokens * ranks
  int64_t inputs, outputs;
  int tokens, ranks;  // at most kLowRankTokens tokens
};

constexpr int kLowRankTokens = 32;

struct Kernels {
  const char* name;
  // Round a row to 8 bits with a scale for each block; `size` values are padded to blocks * block.
  void (*quantize)(const float* x, int64_t size, int64_t block, int64_t blocks, int8_t* q, float* scales,
                   int32_t* sums);
  void (*product)(const Product&, int64_t panel, int64_t first_row, int64_t end_row);
  void (*product_of_floats)(const FloatProduct&, int64_t panel, int64_t first_row, int64_t end_row);
  // Add the sums of further inputs, [rows][kPanel], to `columns` outputs of each row, and then the bias unless it is
  // null.
  void (*add)(const float* sums, const float* bias, int64_t rows, int64_t columns, float* out, int64_t stride);
  // For the outputs of one panel; `values` are read by kSwiglu only.
  void (*activate)(const Activation&, const float* gates, const float* values, float* out);
  void (*attend)(const Attend&);
  // Add the results over further keys to those in top, sum and acc.
  void (*merge)(int64_t queries, int head_size, float* top, float* sum, float* acc, const float* top2,
                const float* sum2, const float* acc2);
  // The attention of one query: its weighted sum of values [head_size], divided by the sum of weights. A `sink` is the
  // score of a key without a value; null for none.
  void (*finish)(int head_size, float top, float sum, const float* acc, const float* sink, float* out);
  void (*convolve)(const Convolve&);
  void (*recur)(const Recur&);
  void (*low_rank)(const LowRank&);
  int rows;  // products of multiples of this number of rows waste nothing
  bool has_bf16;
};

inline int64_t scratch_floats(int64_t queries, int head_size) {
  return 3 * kKeyBlock * head_size + queries * (kKeyBlock + head_size) + 4 * queries + 64;
}

extern const Kernels kernels_base, kernels_avx2, kernels_avx512vnni, kernels_avx512bf16;

// Those of avx512bf16, with products by AMX; null where the processor, the system or the process has no tiles. For
// processors that can run avx512bf16, and not at the same time by two threads the first time.
const Kernels* amx_kernels();

}  // namespace native
