// The tiles of AMX: matrices of up to 16 rows of 64 bytes in eight registers, whose sizes a configuration sets.
//
// Each instruction is written out, because GCC 12 loses the sizes of tiles that it allocates itself. The clobbered
// memory orders tile instructions among each other and with the loads and stores around them. EMULATED_AMX replaces
// them by plain C++, for tests on other processors: it ends the process where a processor would raise an exception.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace native {

// What LDTILECFG and STTILECFG read and write. Palette 0 is: no tiles.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t columns[16];  // in bytes
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

#define INLINE static inline __attribute__((always_inline))

#if !defined(EMULATED_AMX)

INLINE void load_config(const TileConfig* config) { asm volatile("ldtilecfg %0" : : "m"(*config) : "memory"); }
INLINE void store_config(TileConfig* config) { asm volatile("sttilecfg %0" : "=m"(*config) : : "memory"); }
INLINE void release_tiles() { asm volatile("tilerelease" : : : "memory"); }

template <int TILE>
INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE) : "memory");
}
template <int TILE>
INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(TILE), "r"(from), "r"(stride) : "memory");
}
template <int TILE>
INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(to), "r"(stride) : "memory");
}
// Add to each 32-bit value [m][n] of SUMS the products of signed bytes [m][k] of A and [k / 4][n][k % 4] of B.
template <int SUMS, int A, int B>
INLINE void multiply_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B) : "memory");
}
// Add to each float [m][n] of SUMS the products of bfloat16 numbers [m][k] of A and [k / 2][n][k % 2] of B.
template <int SUMS, int A, int B>
INLINE void multiply_bf16_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B) : "memory");
}

#else

struct Tiles {
  TileConfig config;
  uint8_t data[8][16][64];
};
inline thread_local Tiles tiles;
inline int64_t num_multiplied;  // by all threads

INLINE void expect(bool is_allowed) {
  if (!is_allowed) abort();
}
INLINE int rows_of_tile(int tile) {
  expect(tiles.config.palette == 1 && tiles.config.rows[tile] && tiles.config.columns[tile]);
  return tiles.config.rows[tile];
}

INLINE void load_config(const TileConfig* config) {
  expect(config->palette <= 1);
  const bool is_used = config->palette == 1;
  for (int i = 0; i < 14; ++i) expect(!is_used || !config->reserved[i]);
  for (int i = 0; i < 16; ++i) {
    const int rows = config->rows[i], columns = config->columns[i];
    expect(!is_used || (i < 8 ? rows <= 16 && columns <= 64 && !rows == !columns : !rows && !columns));
  }
  memset(&tiles, 0, sizeof tiles);
  if (is_used) tiles.config = *config;
}
INLINE void store_config(TileConfig* config) { *config = tiles.config; }
INLINE void release_tiles() { memset(&tiles, 0, sizeof tiles); }

template <int TILE>
INLINE void zero_tile() {
  rows_of_tile(TILE);
  memset(tiles.data[TILE], 0, sizeof tiles.data[TILE]);
}
template <int TILE>
INLINE void load_tile(const void* from, int64_t stride) {
  const int rows = rows_of_tile(TILE);
  zero_tile<TILE>();
  for (int m = 0; m < rows; ++m)
    memcpy(tiles.data[TILE][m], static_cast<const char*>(from) + m * stride, tiles.config.columns[TILE]);
}
template <int TILE>
INLINE void store_tile(void* to, int64_t stride) {
  const int rows = rows_of_tile(TILE);
  for (int m = 0; m < rows; ++m)
    memcpy(static_cast<char*>(to) + m * stride, tiles.data[TILE][m], tiles.config.columns[TILE]);
}
struct Sizes {
  int rows, depth, width;  // of a product, in 32-bit values
};
template <int SUMS, int A, int B>
INLINE Sizes sizes_of_product() {
  static_assert(SUMS != A && SUMS != B && A != B);
  const uint16_t* columns = tiles.config.columns;
  const int rows = rows_of_tile(SUMS), depth = columns[A] / 4, width = columns[SUMS] / 4;
  expect(rows == rows_of_tile(A) && depth == rows_of_tile(B) && columns[SUMS] == columns[B]);
  expect(columns[SUMS] % 4 == 0 && columns[A] % 4 == 0 && columns[B] % 4 == 0);
  __atomic_add_fetch(&num_multiplied, 1, __ATOMIC_RELAXED);
  return {rows, depth, width};
}
template <int SUMS, int A, int B>
INLINE void multiply_tiles() {
  const auto [rows, depth, width] = sizes_of_product<SUMS, A, B>();
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < width; ++n) {
      uint32_t sum;
      memcpy(&sum, tiles.data[SUMS][m] + 4 * n, 4);
      for (int k = 0; k < depth; ++k)
        for (int j = 0; j < 4; ++j)
          sum += (uint32_t)((int8_t)tiles.data[A][m][4 * k + j] * (int8_t)tiles.data[B][k][4 * n + j]);
      memcpy(tiles.data[SUMS][m] + 4 * n, &sum, 4);
    }
}
template <int SUMS, int A, int B>
INLINE void multiply_bf16_tiles() {
  const auto [rows, depth, width] = sizes_of_product<SUMS, A, B>();
  const auto widened = [](const uint8_t* from) {
    uint16_t half;
    memcpy(&half, from, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  };
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < width; ++n) {
      float total, sums[2] = {0, 0};
      memcpy(&total, tiles.data[SUMS][m] + 4 * n, 4);
      for (int k = 0; k < depth; ++k)
        for (int j = 0; j < 2; ++j)
          sums[j] += widened(tiles.data[A][m] + 4 * k + 2 * j) * widened(tiles.data[B][k] + 4 * n + 2 * j);
      total += sums[0] + sums[1];
      memcpy(tiles.data[SUMS][m] + 4 * n, &total, 4);
    }
}

#endif
#undef INLINE

}  // namespace native
