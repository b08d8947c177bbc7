// The small matrices of adapters. README.md describes the operator's inputs.
#include "low_rank.h"

namespace native {
namespace {

// See README.md, RaggedLowRank.
class RaggedLowRank {
 public:
  static constexpr const char* kName = "RaggedLowRank";
  static constexpr size_t kInputs = 6;
  enum Input { kTokens, kFirst, kSecond, kStarts, kRanks, kNumRanks };
  static int type(size_t index) { return index >= kStarts ? ort::kInt32 : ort::kFloat; }
  static bool is_optional(size_t) { return false; }

  ort::Status open(const Attributes&) { return nullptr; }

  ort::Status compute(const Context& context) const {
    Tensor x, a, b, starts, ranks, num_ranks;
    TRY(context.input(kTokens, &x));
    TRY(context.input(kFirst, &a));
    TRY(context.input(kSecond, &b));
    TRY(context.input(kStarts, &starts));
    TRY(context.input(kRanks, &ranks));
    TRY(context.input(kNumRanks, &num_ranks));
    CHECK(x.rank == 3 && x.shape[0] == 1 && a.rank == 2 && b.rank == 2 && a.shape[1] == x.shape[2] &&
              a.shape[0] == b.shape[0],
          "%s: the tokens must be [1, tokens, inputs], and the matrices [ranks, inputs] and [ranks, outputs]", kName);
    const int64_t tokens = x.shape[1], inputs = x.shape[2], outputs = b.shape[1], rows = ranks.count();
    CHECK(starts.count() == rows + 1 && num_ranks.count() == rows, "%s: starts, ranks and num_ranks are of other rows",
          kName);
    int64_t num_parts = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t start = starts.as<int32_t>()[r], end = starts.as<int32_t>()[r + 1];
      const int64_t first = ranks.as<int32_t>()[r], number = num_ranks.as<int32_t>()[r];
      CHECK(start >= 0 && start <= end && end <= tokens, "%s: the tokens of row %d are %lld to %lld of %lld", kName,
            (int)r, (long long)start, (long long)end, (long long)tokens);
      CHECK(first >= 0 && number >= 0 && first + number <= a.shape[0],
            "%s: the ranks of row %d are %lld to %lld of %lld", kName, (int)r, (long long)first,
            (long long)(first + number), (long long)a.shape[0]);
      num_parts += divided_up(end - start, kLowRankTokens);
    }
    const int64_t shape[3] = {1, tokens, outputs};
    float* out = nullptr;
    TRY(context.output(shape, 3, &out));
    if (!tokens || !outputs) return nullptr;
    memset(out, 0, tokens * outputs * 4);
    static thread_local Scratch parts_memory;
    auto* parts = parts_memory.get<Part>(num_parts * (int64_t)sizeof(Part));
    if (num_parts && !parts) return error(ort::kFail, "%s: out of memory", kName);
    num_parts = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = starts.as<int32_t>()[r]; t < starts.as<int32_t>()[r + 1]; t += kLowRankTokens)
        if (num_ranks.as<int32_t>()[r])
          parts[num_parts++] = {r, t, smaller(kLowRankTokens, starts.as<int32_t>()[r + 1] - t)};
    bool has_failed = false;  // written by threads, only ever to true
    TRY(context.parallel(num_parts, [&](int64_t i) {
      const Part& part = parts[i];
      const int64_t first = ranks.as<int32_t>()[part.row], number = num_ranks.as<int32_t>()[part.row];
      static thread_local Scratch scratch;
      LowRank p{};
      p.scratch = scratch.get<float>(part.tokens * number * 4);
      if (!p.scratch) return __atomic_store_n(&has_failed, true, __ATOMIC_RELAXED);
      p.x = x.as<float>() + part.token * inputs, p.out = out + part.token * outputs;
      p.a = a.as<float>() + first * inputs, p.b = b.as<float>() + first * outputs;
      p.inputs = inputs, p.outputs = outputs, p.tokens = (int)part.tokens, p.ranks = (int)number;
      g_kernels->low_rank(p);
    }));
    return has_failed ? error(ort::kFail, "%s: out of memory", kName) : nullptr;
  }

 private:
  // Some tokens of a row.
  struct Part {
    int64_t row, token, tokens;
  };
};

}  // namespace

ort::CustomOp low_rank_operator() { return described<RaggedLowRank>(); }

}  // namespace native
