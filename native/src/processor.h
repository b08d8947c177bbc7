// The instructions that an x86-64 processor and its system can run, by CPUID. The compiler's __builtin_cpu_supports
// will not do: the runtime library of zig's compiler finds none.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

namespace native {

struct Features {
  bool avx2 = false;        // with FMA, F16C and BMI2
  bool avx512vnni = false;  // with F, BW, DQ and VL, and the above
  bool avx512bf16 = false;  // with the above
  bool amx = false;         // with products of int8 and of bfloat16
};

inline Features processor_features() {
  constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kF16c = 1u << 29;                 // leaf 1, ECX
  constexpr unsigned kAvx2 = 1u << 5, kBmi2 = 1u << 8;                                       // leaf 7, EBX
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                    // F, DQ, BW and VL
  constexpr unsigned kVnni = 1u << 11;                                                       // leaf 7, ECX
  constexpr unsigned kTiles = 1u << 22 | 1u << 24 | 1u << 25;                                // leaf 7, EDX
  constexpr unsigned kBf16 = 1u << 5;                                                        // leaf 7.1, EAX
  constexpr unsigned kAvxState = 6, kAvx512State = kAvxState | 0xe0, kTileState = 3u << 17;  // XCR0
  const auto has = [](unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; };
  Features found;
  unsigned a, b, c, d, base, with_bf16 = 0, state, unused;
  if (!__get_cpuid(1, &a, &b, &base, &d) || !has(base, kOsxsave) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
    return found;
  if (a >= 1) __cpuid_count(7, 1, with_bf16, unused, unused, unused);
  asm volatile("xgetbv" : "=a"(state), "=d"(unused) : "c"(0));
  found.avx2 = has(state, kAvxState) && has(base, kFma | kF16c) && has(b, kAvx2 | kBmi2);
  found.avx512vnni = found.avx2 && has(state, kAvx512State) && has(b, kAvx512) && has(c, kVnni);
  found.avx512bf16 = found.avx512vnni && has(with_bf16, kBf16);
  found.amx = has(state, kTileState) && has(d, kTiles);
  return found;
}

}  // namespace native
#endif
