// Products of many rows, and attention in bfloat16, with the tiles of AMX. The AVX-512 kernels compute everything else.
// Products are bitwise theirs: the sums of a block are integers, and the steps in floats are the same in the same
// order. Attention adds in an order of its own, which is the same for any number of rows.
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "amx_tiles.h"
#include "kernels.h"
#include "processor.h"

namespace native {
namespace {

constexpr int kSide = 16;               // rows and outputs of a tile of sums
constexpr int kTiles = kPanel / kSide;  // of a panel
constexpr int kMaxGroups = 4;           // of kSide rows, for which the weights of a block are unpacked once
constexpr int kStrip = kMaxGroups * kSide;
constexpr int64_t kMaxBlock = 256;
// For so few rows the AVX-512 kernels read the weights once, and need not unpack them.
constexpr int64_t kFewRows = 4;

using Sums = int32_t[kTiles][kSide][kSide];
using Totals = float[kSide][kPanel];

// Unpack the weights of a block as signed bytes in the order of tiles, [kTiles][block / 4][kSide outputs][4].
void unpack(const uint8_t* from, int bits, int64_t block, int8_t* to) {
  const __m512i nibbles = _mm512_set1_epi8(15), middle = _mm512_set1_epi8(bits == 4 ? 8 : -128);
  const int64_t tile = block * kSide;
  for (int64_t k = 0; k < block; k += 32 / bits)
    for (int t = 0; t < kTiles; ++t, from += 64) {
      int8_t* at = to + t * tile + k * kSide;
      const __m512i packed = _mm512_loadu_si512(from);
      if (bits == 8) {
        _mm512_storeu_si512(at, _mm512_sub_epi8(packed, middle));
      } else {
        _mm512_storeu_si512(at, _mm512_sub_epi8(_mm512_and_si512(packed, nibbles), middle));
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibbles);
        _mm512_storeu_si512(at + 64, _mm512_sub_epi8(high, middle));
      }
    }
}

template <int TILE>
inline void add_product(const int8_t* weights, int64_t block, int64_t k) {
  load_tile<5 + TILE % 2>(weights + (TILE * block + k) * kSide, 4 * kSide);
  multiply_tiles<TILE, 4, 5 + TILE % 2>();
}

// The sums of a block for a group of rows.
void sum_group(const int8_t* activations, int64_t depth, const int8_t* weights, int64_t block, int64_t step,
               Sums sums) {
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  for (int64_t k = 0; k < block; k += step) {
    load_tile<4>(activations + k, depth);
    add_product<0>(weights, block, k);
    add_product<1>(weights, block, k);
    add_product<2>(weights, block, k);
    add_product<3>(weights, block, k);
  }
  store_tile<0>(sums[0], 4 * kSide);
  store_tile<1>(sums[1], 4 * kSide);
  store_tile<2>(sums[2], 4 * kSide);
  store_tile<3>(sums[3], 4 * kSide);
}

// Add the sums of block `b` to the totals of a group of rows.
void add_sums(const Product& p, int64_t panel, int64_t b, int64_t row, int64_t height, const Sums sums, Totals totals) {
  const int64_t at = (panel * p.blocks + b) * kPanel;
  __m512 scales[kTiles], offsets[kTiles];
  for (int t = 0; t < kTiles; ++t) {
    scales[t] = _mm512_loadu_ps(p.scales + at + t * kSide);
    offsets[t] = p.offsets ? _mm512_loadu_ps(p.offsets + at + t * kSide) : _mm512_setzero_ps();
  }
  for (int64_t r = 0; r < height; ++r) {
    const int64_t of_row = (row + r) * p.blocks + b;
    const __m512 scale = _mm512_set1_ps(p.activation_scales[of_row]);
    for (int t = 0; t < kTiles; ++t) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[t][r]));
      float* total = totals[r] + t * kSide;
      _mm512_store_ps(total, _mm512_fmadd_ps(sum, _mm512_mul_ps(scales[t], scale), _mm512_load_ps(total)));
    }
    if (!p.offsets) continue;
    const __m512 sum = _mm512_set1_ps(p.activation_scales[of_row] * (float)p.activation_sums[of_row]);
    for (int t = 0; t < kTiles; ++t) {
      float* total = totals[r] + t * kSide;
      _mm512_store_ps(total, _mm512_fmadd_ps(offsets[t], sum, _mm512_load_ps(total)));
    }
  }
}

void write(const Product& p, int64_t panel, int64_t row, int64_t height, const float (*totals)[kPanel]) {
  const int64_t first = panel * kPanel, left = p.outputs - first < kPanel ? p.outputs - first : kPanel;
  for (int64_t r = 0; r < height; ++r)
    for (int64_t i = 0; i < left; i += kSide) {
      const __mmask16 some = left - i < kSide ? (__mmask16)((1 << (left - i)) - 1) : (__mmask16)-1;
      __m512 value = _mm512_load_ps(totals[r] + i);
      float* out = p.out + (row + r) * p.stride + first + i;
      if (p.adds) value = _mm512_add_ps(_mm512_maskz_loadu_ps(some, out), value);
      if (p.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(some, p.bias + first + i));
      _mm512_mask_storeu_ps(out, some, value);
    }
}

// A panel for up to kStrip rows, in groups of `height`. The last group may have rows of the one before.
void strip(const Product& p, int64_t panel, int64_t row, int64_t end, int64_t height, int64_t step) {
  const int64_t depth = p.block * p.blocks, bytes = p.block * kPanel * p.bits / 8;
  const int groups = (int)((end - row + kSide - 1) / kSide);
  alignas(64) int8_t weights[kMaxBlock * kPanel];
  alignas(64) Totals totals[kMaxGroups];
  alignas(64) Sums sums;
  auto first_of = [=](int group) { return group < groups - 1 ? row + group * kSide : end - height; };
  memset(totals, 0, groups * sizeof *totals);
  for (int64_t b = p.begin; b < p.end; ++b) {
    unpack(p.weights + (panel * p.blocks + b) * bytes, p.bits, p.block, weights);
    for (int g = 0; g < groups; ++g) {
      sum_group(p.activations + first_of(g) * depth + b * p.block, depth, weights, p.block, step, sums);
      add_sums(p, panel, b, first_of(g), height, sums, totals[g]);
    }
  }
  for (int g = 0; g < groups; ++g) {
    const int64_t written = row + g * kSide - first_of(g);  // rows of the group before
    write(p, panel, row + g * kSide, height - written, totals[g] + written);
  }
}

void product(const Product& p, int64_t panel, int64_t row, int64_t end) {
  const int64_t rows = end - row;
  if (rows <= kFewRows || p.block > kMaxBlock) return kernels_avx512bf16.product(p, panel, row, end);
  const int64_t height = rows < kSide ? rows : kSide;
  int64_t step = 64;  // inputs of a tile
  while (p.block % step) step -= 16;
  TileConfig before, config{};
  config.palette = 1;
  for (int i = 0; i < 7; ++i) {
    config.rows[i] = (uint8_t)(i < 5 ? height : step / 4);
    config.columns[i] = (uint16_t)(i == 4 ? step : 4 * kSide);
  }
  store_config(&before);  // ONNX Runtime's, whose kernels set one for each thread
  load_config(&config);
  for (int64_t next; row < end; row = next) {
    next = row + kStrip < end ? row + kStrip : end;
    strip(p, panel, row, next, height, step);
  }
  before.palette ? load_config(&before) : release_tiles();
}

// The tiles of a product of pairs: of sums, then of A, then two of B in turn.
constexpr int kSums = 4, kOfA = kSums;

template <int COLUMNS>
void multiply_pairs_strip(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc,
                          int depth) {
  load_tile<0>(c, ldc * 4);
  if constexpr (COLUMNS > 1) load_tile<1>(c + kSide, ldc * 4);
  if constexpr (COLUMNS > 2) load_tile<2>(c + 2 * kSide, ldc * 4);
  if constexpr (COLUMNS > 3) load_tile<3>(c + 3 * kSide, ldc * 4);
  for (int k = 0; k < depth; k += kSide) {
    const uint32_t* row = b + k * ldb;
    load_tile<kOfA>(a + k, lda * 4);
    load_tile<5>(row, ldb * 4);
    multiply_bf16_tiles<0, kOfA, 5>();
    if constexpr (COLUMNS > 1) {
      load_tile<6>(row + kSide, ldb * 4);
      multiply_bf16_tiles<1, kOfA, 6>();
    }
    if constexpr (COLUMNS > 2) {
      load_tile<5>(row + 2 * kSide, ldb * 4);
      multiply_bf16_tiles<2, kOfA, 5>();
    }
    if constexpr (COLUMNS > 3) {
      load_tile<6>(row + 3 * kSide, ldb * 4);
      multiply_bf16_tiles<3, kOfA, 6>();
    }
  }
  store_tile<0>(c, ldc * 4);
  if constexpr (COLUMNS > 1) store_tile<1>(c + kSide, ldc * 4);
  if constexpr (COLUMNS > 2) store_tile<2>(c + 2 * kSide, ldc * 4);
  if constexpr (COLUMNS > 3) store_tile<3>(c + 3 * kSide, ldc * 4);
}

void configure_pairs(int64_t height) {
  TileConfig config{};
  config.palette = 1;
  for (int i = 0; i < 7; ++i) config.rows[i] = (uint8_t)(i <= kOfA ? height : kSide), config.columns[i] = 4 * kSide;
  load_config(&config);
}

void multiply_pairs(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, int64_t rows,
                    int columns, int depth) {
  for (int64_t r = 0; r < rows; r += kSide) {
    const int64_t height = rows - r < kSide ? rows - r : kSide;
    if (r == 0 || height < kSide) configure_pairs(height);
    const uint32_t* from = a + r * lda;
    float* to = c + r * ldc;
    for (int j = 0; j < columns; j += kSums * kSide) {
      const int left = (columns - j) / kSide;
      const auto strip = left >= 4   ? multiply_pairs_strip<4>
                         : left == 3 ? multiply_pairs_strip<3>
                         : left == 2 ? multiply_pairs_strip<2>
                                     : multiply_pairs_strip<1>;
      strip(from, lda, b + j, ldb, to + j, ldc, depth);
    }
  }
}

void attend(const Attend& p) {
  if (!p.bf16) return kernels_avx512bf16.attend(p);
  Attend with_tiles = p;
  with_tiles.multiply_pairs = multiply_pairs;
  TileConfig before;
  store_config(&before);
  kernels_avx512bf16.attend(with_tiles);
  before.palette ? load_config(&before) : release_tiles();
}

// Whether the processor and the system have tiles, and this process may use them.
bool has_tiles() {
#if defined(EMULATED_AMX)
  return true;
#elif defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return processor_features().amx && !syscall(SYS_arch_prctl, kRequestPermission, kTileData);
#else
  return false;
#endif
}

}  // namespace

const Kernels* amx_kernels() {
  static Kernels found;
  if (!found.name && has_tiles()) {
    found = kernels_avx512bf16;
    found.product = product;
    found.attend = attend;
    found.rows = kStrip;
    found.name = "amx";
  }
  return found.name ? &found : nullptr;
}

}  // namespace native

#if defined(EMULATED_AMX)
#define EXPORT extern "C" __attribute__((visibility("default")))

// For tests: how often tiles were multiplied, and the configuration of the calling thread.
EXPORT int64_t emulated_multiplications() { return native::num_multiplied; }
EXPORT void emulated_load_config(const void* from) {
  native::TileConfig config;
  memcpy(&config, from, sizeof config);
  native::load_config(&config);
}
EXPORT void emulated_store_config(void* to) { memcpy(to, &native::tiles.config, sizeof(native::TileConfig)); }
#endif
