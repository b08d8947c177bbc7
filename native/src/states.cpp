// Layers that keep a state of fixed size for each sequence: causal convolutions of channels, and linear attention.
// README.md describes the operators' inputs and attributes.
//
// Both read the flat tokens of any rows, one after another, and write a row's state into its slot behind the first
// `committed` of its tokens, so that a caller can leave the tokens of a draft out until it knows which are accepted.
#include "states.h"

namespace native {
namespace {

// The rows of a pass: where their flat tokens are, their slots, and how many of their tokens change the states.
struct Rows {
  const int32_t *starts, *slots, *committed;
  int64_t count, tokens, num_slots;

  ort::Status read(const Context& context, const char* op, size_t first, int64_t num_tokens, int64_t slots_of_state) {
    Tensor in[3];
    for (size_t i = 0; i < 3; ++i) TRY(context.input(first + i, in + i));
    starts = in[0].as<int32_t>(), slots = in[1].as<int32_t>(), committed = in[2].as<int32_t>();
    count = in[1].count(), tokens = num_tokens, num_slots = slots_of_state;
    CHECK(in[0].count() == count + 1 && in[2].count() == count, "%s: starts, slots and committed are of other rows",
          op);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t start = starts[r], end = starts[r + 1];
      CHECK(start >= 0 && start <= end && end <= tokens, "%s: the tokens of row %d are %lld to %lld of %lld", op,
            (int)r, (long long)start, (long long)end, (long long)tokens);
      CHECK(slots[r] >= 0 && slots[r] < num_slots, "%s: row %d has slot %d of %lld", op, (int)r, (int)slots[r],
            (long long)num_slots);
      CHECK(committed[r] >= 0 && committed[r] <= end - start, "%s: %d of %lld tokens of row %d would change its state",
            op, (int)committed[r], (long long)(end - start), (int)r);
    }
    return nullptr;
  }
};

// Clear the flat tokens that belong to no row.
void clear_others(const Rows& rows, float* out, int64_t width) {
  int64_t next = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (rows.starts[r] > next) memset(out + next * width, 0, (rows.starts[r] - next) * width * 4);
    next = larger(next, rows.starts[r + 1]);
  }
  if (rows.tokens > next) memset(out + next * width, 0, (rows.tokens - next) * width * 4);
}

// See README.md, RaggedConvolution.
class RaggedConvolution {
 public:
  static constexpr const char* kName = "RaggedConvolution";
  static constexpr size_t kInputs = 7;
  enum Input { kTokens, kWeights, kState, kStarts, kSlots, kCommitted, kBias };
  static int type(size_t index) { return index >= kStarts && index <= kCommitted ? ort::kInt32 : ort::kFloat; }
  static bool is_optional(size_t index) { return index == kBias; }

  ort::Status open(const Attributes& given) {
    silu_ = given.integer("silu", 0) != 0;
    return nullptr;
  }

  ort::Status compute(const Context& context) const {
    Tensor x, weights, state, bias;
    TRY(context.input(kTokens, &x));
    TRY(context.input(kWeights, &weights));
    TRY(context.input(kState, &state));
    TRY(context.input(kBias, &bias));
    CHECK(x.rank == 3 && x.shape[0] == 1, "%s: the tokens must be [1, tokens, channels]", kName);
    CHECK(weights.rank == 2 && state.rank == 3 && weights.shape[1] == x.shape[2] && state.shape[2] == x.shape[2] &&
              state.shape[1] == weights.shape[0] - 1 && weights.shape[0] <= kMaxWidth &&
              (!bias.data || bias.count() == x.shape[2]),
          "%s: weights must be [width, channels], the states [slots, width - 1, channels], and the bias [channels]",
          kName);
    Rows rows;
    TRY(rows.read(context, kName, kStarts, x.shape[1], state.shape[0]));
    float* out = nullptr;
    TRY(context.output(x.shape, 3, &out));
    const int64_t channels = x.shape[2], width = weights.shape[0];
    if (!x.count()) return nullptr;
    clear_others(rows, out, channels);
    constexpr int64_t kChannelsOfTask = 512;
    const int64_t parts = divided_up(channels, kChannelsOfTask);
    return context.parallel(rows.count * parts, [&](int64_t i) {
      const int64_t row = i / parts, first = i % parts * kChannelsOfTask, start = rows.starts[row];
      Convolve c{};
      c.tokens = x.as<float>() + start * channels + first, c.out = out + start * channels + first;
      c.weights = weights.as<float>() + first, c.bias = bias.data ? bias.as<float>() + first : nullptr;
      c.state = state.as<float>() + rows.slots[row] * (width - 1) * channels + first;
      c.stride = channels, c.channels = smaller(kChannelsOfTask, channels - first), c.width = (int)width;
      c.num_tokens = rows.starts[row + 1] - start, c.committed = rows.committed[row], c.silu = silu_;
      g_kernels->convolve(c);
    });
  }

 private:
  static constexpr int64_t kMaxWidth = 64;
  bool silu_;
};

// See README.md, RaggedLinearAttention.
class RaggedLinearAttention {
 public:
  static constexpr const char* kName = "RaggedLinearAttention";
  static constexpr size_t kInputs = 9;
  enum Input { kQuery, kKey, kValue, kState, kStarts, kSlots, kCommitted, kDecay, kRate };
  static int type(size_t index) { return index >= kStarts && index <= kCommitted ? ort::kInt32 : ort::kFloat; }
  static bool is_optional(size_t index) { return index >= kDecay; }

  ort::Status open(const Attributes& given) {
    query_heads_ = given.integer("q_num_heads", 0), heads_ = given.integer("kv_num_heads", 0),
    scale_ = given.real("scale", 0);
    is_delta_ = given.integer("delta", 1) != 0;
    const int64_t most = larger(query_heads_, heads_), least = smaller(query_heads_, heads_);
    CHECK(least > 0 && most < 65536 && most % least == 0, "%s: q_num_heads %lld and kv_num_heads %lld do not fit",
          kName, (long long)query_heads_, (long long)heads_);
    return nullptr;
  }

  ort::Status compute(const Context& context) const {
    Tensor query, key, value, state, decay, rate;
    TRY(context.input(kQuery, &query));
    TRY(context.input(kKey, &key));
    TRY(context.input(kValue, &value));
    TRY(context.input(kState, &state));
    TRY(context.input(kDecay, &decay));
    TRY(context.input(kRate, &rate));
    CHECK(query.rank == 3 && query.shape[0] == 1, "%s: the tokens must be [1, tokens, values]", kName);
    const int64_t tokens = query.shape[1], size = query.shape[2] / query_heads_;
    CHECK(state.rank == 4 && state.shape[1] == heads_ && state.shape[2] == size && size > 0 &&
              size * query_heads_ == query.shape[2],
          "%s: the states must be [slots, %lld, %lld, value_size]", kName, (long long)heads_, (long long)size);
    const int64_t value_size = state.shape[3];
    const int64_t key_heads = key.last() / size;
    auto fits = [&](const Tensor& given, int64_t last) {
      return given.rank == 3 && given.shape[0] == 1 && given.shape[1] == tokens && given.shape[2] == last;
    };
    CHECK(key_heads > 0 && heads_ % key_heads == 0 && fits(key, key_heads * size) && fits(value, heads_ * value_size),
          "%s: the tokens' keys or values have a wrong size", kName);
    const bool by_key = decay.data && decay.last() == heads_ * size && size > 1;
    CHECK(!decay.data || fits(decay, by_key ? heads_ * size : heads_), "%s: the tokens' decays have a wrong size",
          kName);
    CHECK((rate.data != nullptr) == is_delta_ && (!rate.data || fits(rate, heads_) || fits(rate, 1)),
          "%s: the tokens' rates have a wrong size", kName);
    CHECK(value_size % 4 == 0, "%s: a value must have a multiple of 4 numbers; given %lld", kName,
          (long long)value_size);
    CHECK(size % 2 == 0, "%s: a key must have an even number of values; given %lld", kName, (long long)size);
    Rows rows;
    TRY(rows.read(context, kName, kStarts, tokens, state.shape[0]));
    const int64_t out_heads = larger(query_heads_, heads_), width = out_heads * value_size;
    const int64_t shape[3] = {1, tokens, width};
    float* out = nullptr;
    TRY(context.output(shape, 3, &out));
    if (!tokens || !width) return nullptr;
    clear_others(rows, out, width);
    // The columns of a state do not depend on each other: a task has a part that stays in the first-level cache.
    const int64_t parts = divided_up(value_size, kColumns), num_shared = out_heads / heads_;
    bool has_failed = false;  // written by threads, only ever to true
    TRY(context.parallel(rows.count * heads_ * parts, [&](int64_t i) {
      const int64_t row = i / (heads_ * parts), head = i / parts % heads_, column = i % parts * kColumns,
                    start = rows.starts[row];
      static thread_local Scratch scratch;
      Recur c{};
      c.scratch = scratch.get<float>(recur_floats(size) * 4);
      if (!c.scratch) return __atomic_store_n(&has_failed, true, __ATOMIC_RELAXED);
      const int64_t query_head = query_heads_ >= heads_ ? head * num_shared : head / (heads_ / query_heads_);
      c.queries = query.as<float>() + start * query.shape[2] + query_head * size, c.query_stride = query.shape[2];
      c.keys = key.as<float>() + start * key.shape[2] + head / (heads_ / key_heads) * size, c.key_stride = key.shape[2];
      c.values = value.as<float>() + start * value.shape[2] + head * value_size + column,
      c.value_stride = value.shape[2];
      if (decay.data)
        c.decays = decay.as<float>() + start * decay.shape[2] + head * (by_key ? size : 1),
        c.decay_stride = decay.shape[2], c.decays_by_key = by_key;
      if (rate.data)
        c.rates = rate.as<float>() + start * rate.shape[2] + (rate.shape[2] == 1 ? 0 : head),
        c.rate_stride = rate.shape[2];
      c.out = out + start * width + (query_heads_ >= heads_ ? head * num_shared : head) * value_size + column,
      c.out_stride = width;
      c.state = state.as<float>() + (rows.slots[row] * heads_ + head) * size * value_size + column;
      c.size = (int)size, c.value_size = (int)value_size, c.columns = (int)smaller(kColumns, value_size - column);
      c.num_queries = query_heads_ >= heads_ ? (int)num_shared : 1;
      c.num_tokens = rows.starts[row + 1] - start, c.committed = rows.committed[row];
      c.scale = scale_ != 0 ? scale_ : 1 / sqrtf((float)size);
      g_kernels->recur(c);
    }));
    return has_failed ? error(ort::kFail, "%s: out of memory", kName) : nullptr;
  }

 private:
  int64_t query_heads_, heads_;
  float scale_;
  bool is_delta_;
};

}  // namespace

ort::CustomOp convolution_operator() { return described<RaggedConvolution>(); }
ort::CustomOp linear_attention_operator() { return described<RaggedLinearAttention>(); }

}  // namespace native
