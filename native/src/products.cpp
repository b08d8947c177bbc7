// Products with packed weights: of a matrix, and of the experts that a router chooses.
#include "products.h"

namespace native {
namespace {

// Multiplications that are worth a task of their own.
constexpr int64_t kSmallWork = 1 << 16;

// A matrix with fewer panels than kFewPanels is divided by inputs, too, because cores without a panel would have
// nothing to do. The inputs of a panel become parts, of which all panels have at most kMaxParts. A part is worth a task
// where it has so many inputs; products of rounded activations take less time.
constexpr int64_t kFewPanels = 16, kMaxParts = 64, kInputsOfPart = 1024, kRoundedInputsOfPart = 2048;
// Rows whose sums of a part are kept at once.
constexpr int64_t kRowsOfPart = 256;

// The size of a packed matrix, and how its products are computed.
struct MatrixSize {
  int64_t outputs, depth, block, blocks, panels, bits;
  // How many parts the inputs are divided into. Each part's products are summed apart, and these sums are added in the
  // order of the parts. So a result depends on the number of parts, and this on the matrix alone.
  int64_t parts;
  bool rounds;  // activations are rounded to 8 bits

  ort::Status open(const char* name, int64_t num_outputs, int64_t num_inputs, int64_t given_block, int64_t given_bits,
                   int64_t activation_bits) {
    outputs = num_outputs, depth = num_inputs, block = given_block, bits = given_bits, rounds = activation_bits == 8;
    const int64_t most = int64_t{1} << 31;
    CHECK(outputs > 0 && depth > 0 && outputs < most && depth < most, "%s: N and K must be positive", name);
    CHECK(bits == 4 || bits == 8 || bits == 16 || bits == 32, "%s: bits must be 4, 8, 16 or 32; given %d", name,
          (int)bits);
    CHECK(activation_bits == 32 || (rounds && bits <= 8),
          "%s: activation_bits must be 32, or 8 with weights of 4 or 8 bits", name);
    if (bits > 8) block = depth;
    // The sums of a block are integers of 32 bits.
    CHECK(bits > 8 || (block >= 16 && block % 16 == 0 && block <= 32768),
          "%s: block must be a multiple of 16 up to 32768; given %lld", name, (long long)block);
    blocks = divided_up(depth, block), panels = divided_up(outputs, kPanel);
    CHECK(panels <= (int64_t{1} << 48) / padded(), "%s: N times K is too large", name);
    parts = 1;
    return nullptr;
  }
  void divide() {
    if (panels >= kFewPanels) return;
    const int64_t worth = depth / (rounds ? kRoundedInputsOfPart : kInputsOfPart);
    parts = larger(1, smaller(smaller(kMaxParts / panels, worth), units()));
  }
  // What a part has a whole number of: blocks of rounded activations, or of kInputBlock inputs.
  int64_t units() const { return rounds ? blocks : divided_up(depth, kInputBlock); }
  int64_t begin_of_part(int64_t part) const { return units() * part / parts; }
  int64_t padded() const { return blocks * block; }
  int64_t num_scales() const { return bits > 8 ? 0 : panels * blocks * kPanel; }
  int64_t num_weights() const { return panels * kPanel * padded(); }
  // Rows whose activations stay in the second-level cache.
  int64_t rows_of_a_task() const {
    const int64_t some = g_kernels->rows;
    if (!rounds) return parts > 1 ? kRowsOfPart : 1008;
    return larger(divided_up(48, some), 393216 / padded() / some) * some;
  }
};

// Activations of a pass, as a product reads them.
struct Rows {
  const float* floats;
  int8_t* values;
  float* scales;
  int32_t* sums;

  // The bytes of rounded activations.
  static int64_t bytes(const MatrixSize& size, int64_t rows) {
    return size.rounds ? divided_up(rows * size.padded(), 64) * 64 + rows * size.blocks * 8 : 0;
  }
  Rows(const MatrixSize& size, int64_t rows, const float* unrounded, char* memory)
      : floats(unrounded), values(), scales(), sums() {
    if (!size.rounds) return;
    values = reinterpret_cast<int8_t*>(memory);
    scales = reinterpret_cast<float*>(memory + divided_up(rows * size.padded(), 64) * 64);
    sums = reinterpret_cast<int32_t*>(scales + rows * size.blocks);
  }
  void round(const MatrixSize& size, int64_t row, const float* x) const {
    g_kernels->quantize(x, size.depth, size.block, size.blocks, values + row * size.padded(),
                        scales + row * size.blocks, sums + row * size.blocks);
  }
};

// One or several packed matrices of the same size.
struct Matrix {
  MatrixSize size;
  const char* weights;
  CacheType type;
  const float *scales, *offsets, *bias;

  // Read `number` matrices from an operator's inputs at `first`: weights, scales, offsets and bias.
  ort::Status read(const Context& context, const char* name, size_t first, const MatrixSize& given, int64_t number) {
    Tensor in[4];
    for (size_t i = 0; i < 4; ++i) TRY(context.input(first + i, in + i));
    size = given, weights = in[0].data, scales = in[1].as<float>(), offsets = in[2].as<float>(),
    bias = in[3].as<float>();
    type = in[0].type == ort::kFloat16 ? kCacheHalf : in[0].type == ort::kBfloat16 ? kCacheBfloat : kCacheFloat;
    const int bits = in[0].type == ort::kFloat ? 32 : type != kCacheFloat ? 16 : 8;
    CHECK(size.bits > 8 ? bits == size.bits : in[0].type == ort::kUint8,
          "%s: the weights have another type than %d bits need", name, (int)size.bits);
    const int64_t count = number * size.num_scales();
    CHECK(in[0].count() == number * size.num_weights() * size.bits / larger(8, bits) &&
              (count ? in[1].data && in[1].count() == count : !scales && !offsets) &&
              (!offsets || in[2].count() == count) && (!bias || in[3].count() == number * size.outputs),
          "%s: weights, scales, offsets or bias have a wrong size", name);
    return nullptr;
  }

  // One of several matrices.
  Matrix of(int64_t index) const {
    Matrix found = *this;
    const int64_t num_scales = index * size.num_scales();
    found.weights += index * size.num_weights() * size.bits / 8;
    if (scales) found.scales += num_scales;
    if (offsets) found.offsets += num_scales;
    if (bias) found.bias += index * size.outputs;
    return found;
  }

  // The sums of a part of the inputs for a panel and the rows from `first` to `end`. Row r goes to out + r * stride.
  void sum_part(const Rows& rows, int64_t panel, int64_t part, int64_t first, int64_t end, float* out,
                int64_t stride) const {
    multiply(rows, panel, part, first, end, false, nullptr, out, stride);
  }

  // Add the sums of a further part [rows][kPanel] to a panel's outputs, and the bias after the last part.
  void add_part(const float* sums, int64_t panel, int64_t part, int64_t first, int64_t end, float* out,
                int64_t stride) const {
    const int64_t at = panel * kPanel;
    g_kernels->add(sums, bias && is_last(part) ? bias + at : nullptr, end - first, smaller(kPanel, size.outputs - at),
                   out + first * stride + at, stride);
  }

  // Multiply rows by a part, and add the sums to those of the parts before it. Floats are up to kRowsOfPart rows.
  void multiply_part(const Rows& rows, int64_t panel, int64_t part, int64_t first, int64_t end, float* out,
                     int64_t stride) const {
    if (part == 0 || size.rounds)
      return multiply(rows, panel, part, first, end, part > 0, is_last(part) ? bias : nullptr, out, stride);
    alignas(64) float sums[kRowsOfPart * kPanel];
    sum_part(rows, panel, part, first, end, sums - (first + panel) * kPanel, kPanel);
    add_part(sums, panel, part, first, end, out, stride);
  }

  // Outputs of a panel for rows from `first` to `end`. Row r goes to out + r * stride.
  void multiply(const Rows& rows, int64_t panel, int64_t first, int64_t end, float* out, int64_t stride) const {
    for (int64_t part = 0; part < size.parts; ++part) multiply_part(rows, panel, part, first, end, out, stride);
  }

  // An activation of a panel's outputs, or with kSwiglu of those of two panels: of gates, and of values behind them.
  // The results are `width` columns; those of panel or pair `index` begin at index * kPanel.
  void multiply_activated(const Activation& activation, const Rows& rows, int64_t index, int64_t first, int64_t end,
                          float* out, int64_t stride, int64_t width) const {
    constexpr int64_t kRowsAtOnce = 64;
    alignas(64) float both[kRowsAtOnce * 2 * kPanel];
    alignas(64) float result[kPanel];
    const int64_t panels = activation.kind == kSwiglu ? 2 : 1, wide = panels * kPanel,
                  columns = smaller(kPanel, width - index * kPanel);
    for (int64_t row = first; row < end; row += kRowsAtOnce) {
      const int64_t next = smaller(end, row + kRowsAtOnce);
      for (int64_t j = 0; j < panels; ++j)
        multiply(rows, panels * index + j, row, next, both - row * wide - panels * index * kPanel, wide);
      for (int64_t r = row; r < next; ++r) {
        const float* gates = both + (r - row) * wide;
        float* to = out + r * stride + index * kPanel;
        g_kernels->activate(activation, gates, gates + kPanel, columns == kPanel ? to : result);
        if (columns != kPanel) memcpy(to, result, columns * sizeof(float));
      }
    }
  }

 private:
  bool is_last(int64_t part) const { return part + 1 == size.parts; }

  // Multiply a part. With `adds`, which needs rounded activations, it is added to the outputs.
  void multiply(const Rows& rows, int64_t panel, int64_t part, int64_t first, int64_t end, bool adds,
                const float* added, float* out, int64_t stride) const {
    const int64_t from = size.begin_of_part(part), to = size.begin_of_part(part + 1);
    if (size.rounds)
      g_kernels->product(
          {rows.values, rows.scales, rows.sums, reinterpret_cast<const uint8_t*>(weights), scales, offsets, added, out,
           size.outputs, stride, size.block, size.blocks, from, to, adds, (int)size.bits},
          panel, first, end);
    else
      g_kernels->product_of_floats(
          {rows.floats, weights, (int)size.bits, type, scales, offsets, added, out, size.outputs, stride, size.depth,
           size.block, size.blocks, from * kInputBlock, smaller(size.depth, to * kInputBlock)},
          panel, first, end);
  }
};

// The product of a few rows with a divided matrix. There are as many tasks as parts of all panels, and each task takes
// parts of its panel until none is left. The first task of a panel adds its parts to the outputs as long as they follow
// each other. The sums of other parts are kept apart until all have ended, and are then added in order. So a few
// threads, which come to the other tasks when no part is left, keep hardly any sums, and many threads have a part each.
class SharedPanels {
 public:
  static int64_t bytes(const MatrixSize& size, int64_t rows) {
    return size.panels * ((int64_t)sizeof(Panel) + size.parts * rows * kPanel * (int64_t)sizeof(float));
  }

  SharedPanels(const Matrix& matrix, const Rows& rows, int64_t num_rows, float* out, char* memory)
      : matrix_(matrix),
        rows_(rows),
        num_rows_(num_rows),
        parts_(matrix.size.parts),
        out_(out),
        panels_(reinterpret_cast<Panel*>(memory)),
        sums_(reinterpret_cast<float*>(panels_ + matrix.size.panels)) {
    for (int64_t i = 0; i < matrix.size.panels; ++i) panels_[i] = {1, 0, 0};
  }

  void work(int64_t task) const {
    const int64_t panel = task / parts_;
    const bool is_first = task % parts_ == 0;
    Panel& shared = panels_[panel];
    auto take = [&]() -> int64_t { return __atomic_fetch_add(&shared.taken, 1, __ATOMIC_RELAXED); };
    for (int64_t part = is_first ? 0 : take(); part < parts_; part = take()) {
      if (is_first && part == shared.added) {
        matrix_.multiply_part(rows_, panel, part, 0, num_rows_, out_, matrix_.size.outputs);
        ++shared.added;
      } else {
        matrix_.sum_part(rows_, panel, part, 0, num_rows_, sums_of(panel, part) - panel * kPanel, kPanel);
      }
      if (__atomic_add_fetch(&shared.ended, 1, __ATOMIC_ACQ_REL) < parts_) continue;
      for (int64_t i = shared.added; i < parts_; ++i)
        matrix_.add_part(sums_of(panel, i), panel, i, 0, num_rows_, out_, matrix_.size.outputs);
    }
  }

 private:
  // Threads change it, so each panel has a cache line of its own.
  struct alignas(64) Panel {
    int64_t taken, ended;  // parts; the first one is the first task's
    int64_t added;         // parts that the first task has added to the outputs
  };

  float* sums_of(int64_t panel, int64_t part) const { return sums_ + (panel * parts_ + part) * num_rows_ * kPanel; }

  const Matrix& matrix_;
  const Rows& rows_;
  int64_t num_rows_, parts_;
  float* out_;
  Panel* panels_;
  float* sums_;
};

// See README.md, PackedMatMul.
class PackedMatMul {
 public:
  static constexpr const char* kName = "PackedMatMul";
  static constexpr size_t kInputs = 5;
  static int type(size_t index) { return index == 1 ? ort::kAny : ort::kFloat; }
  static bool is_optional(size_t index) { return index >= 2; }

  ort::Status open(const Attributes& given) {
    const int64_t bits = given.integer("bits", 4);
    gated_ = given.integer("gated", 0) != 0;
    TRY(size_.open(kName, given.integer("N", 0), given.integer("K", 0), given.integer("block", 0), bits,
                   given.integer("activation_bits", bits <= 8 ? 8 : 32)));
    CHECK(!gated_ || size_.outputs % (2 * kPanel) == 0, "PackedMatMul: N must be a multiple of %d with gated",
          2 * kPanel);
    if (!gated_) size_.divide();
    return nullptr;
  }

  ort::Status compute(const Context& context) const {
    Tensor x;
    Matrix matrix{};
    TRY(context.input(0, &x));
    TRY(matrix.read(context, kName, 1, size_, 1));
    const int64_t depth = size_.depth, width = gated_ ? size_.outputs / 2 : size_.outputs;
    CHECK(x.last() == depth, "PackedMatMul: the activations have %lld inputs, not %lld", (long long)x.last(),
          (long long)depth);
    const int64_t rows = x.count() / depth;
    x.shape[x.rank - 1] = width;
    float* out = nullptr;
    TRY(context.output(x.shape, x.rank, &out));
    if (!rows) return nullptr;
    static thread_local Scratch scratch;
    const int64_t most = size_.rows_of_a_task();
    const bool is_shared =
        size_.parts > 1 && rows <= smaller(most, kRowsOfPart) && rows * depth * size_.outputs > kSmallWork;
    const int64_t bytes = divided_up(Rows::bytes(size_, rows), 64) * 64;
    char* memory = scratch.get(bytes + (is_shared ? SharedPanels::bytes(size_, rows) : 0));
    if (!memory) return error(ort::kFail, "PackedMatMul: out of memory");
    const Rows activations(size_, rows, x.as<float>(), memory);
    if (size_.rounds) {
      const int64_t part = larger(1, 16384 / depth);  // rows that are worth a task of their own
      TRY(context.parallel(divided_up(rows, part), [&](int64_t i) {
        for (int64_t row = i * part; row < smaller(rows, (i + 1) * part); ++row)
          activations.round(size_, row, x.as<float>() + row * depth);
      }));
    }
    if (is_shared) {
      const SharedPanels shared(matrix, activations, rows, out, memory + bytes);
      return context.parallel(size_.panels * size_.parts, [&](int64_t task) { shared.work(task); });
    }
    // A task has one panel, or two with `gated`.
    const int64_t groups = size_.panels / (gated_ ? 2 : 1), tasks = divided_up(rows, most) * groups;
    auto task = [&](int64_t i) {
      const int64_t first = i / groups * most, end = smaller(rows, first + most), index = i % groups;
      if (gated_)
        matrix.multiply_activated({kSwiglu, 1, 0, INFINITY, false}, activations, index, first, end, out, width, width);
      else matrix.multiply(activations, index, first, end, out, width);
    };
    if (rows * depth * size_.outputs > kSmallWork) return context.parallel(tasks, task);
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return nullptr;
  }

 private:
  MatrixSize size_;
  bool gated_;
};

// See README.md, PackedExperts.
class PackedExperts {
 public:
  static constexpr const char* kName = "PackedExperts";
  enum Input { kTokens, kRouter, kRouterWeights, kFirst, kSecond = kFirst + 4 };
  static constexpr size_t kInputs = kSecond + 4;
  static int type(size_t index) { return index == kFirst || index == kSecond ? ort::kAny : ort::kFloat; }
  static bool is_optional(size_t index) { return index >= kRouterWeights && index != kFirst && index != kSecond; }

  ort::Status open(const Attributes& given) {
    experts_ = given.integer("experts", 0), chosen_ = given.integer("k", 1), width_ = given.integer("inner", 0);
    is_normalized_ = given.integer("normalize_routing_weights", 0) != 0;
    const int64_t bits = given.integer("bits", 4),
                  activation_bits = given.integer("activation_bits", bits <= 8 ? 8 : 32), most = int64_t{1} << 20;
    const int64_t kind = given.integer("activation", kSwiglu), depth = given.integer("K", 0);
    CHECK(experts_ > 0 && experts_ < most && chosen_ > 0 && chosen_ <= experts_ && width_ > 0 && width_ < most,
          "PackedExperts: experts, k or inner is wrong");
    CHECK(kind >= kSwiglu && kind <= kIdentity, "PackedExperts: activation must be from 0 to %d; given %lld", kIdentity,
          (long long)kind);
    activation_ = {static_cast<ActivationKind>(kind), given.real("alpha", 1), given.real("beta", 0),
                   given.real("limit", INFINITY), given.integer("limits_result", 0) != 0};
    // The panels of gates and of values alternate.
    const int64_t panels = divided_up(width_, kPanel) * (kind == kSwiglu ? 2 : 1);
    TRY(first_.open(kName, panels * kPanel, depth, given.integer("block", 0), bits, activation_bits));
    TRY(second_.open(kName, depth, width_, given.integer("second_block", 0), bits, activation_bits));
    const int64_t largest = larger(first_.num_weights(), second_.num_weights());
    CHECK(experts_ <= (int64_t{1} << 54) / largest, "PackedExperts: experts times N times K is too large");
    return nullptr;
  }

  ort::Status compute(const Context& context) const {
    Tensor x, router, router_weights;
    Matrix first{}, second{};
    TRY(context.input(kTokens, &x));
    TRY(context.input(kRouter, &router));
    TRY(context.input(kRouterWeights, &router_weights));
    TRY(first.read(context, kName, kFirst, first_, experts_));
    TRY(second.read(context, kName, kSecond, second_, experts_));
    const int64_t depth = first_.depth;
    CHECK(x.last() == depth, "PackedExperts: the tokens have %lld values, not %lld", (long long)x.last(),
          (long long)depth);
    const int64_t tokens = x.count() / depth, routes = tokens * chosen_;
    CHECK(router.count() == tokens * experts_ && (!router_weights.data || router_weights.count() == router.count()),
          "PackedExperts: the router's values are not those of %lld tokens and %lld experts", (long long)tokens,
          (long long)experts_);
    float* out = nullptr;
    TRY(context.output(x.shape, x.rank, &out));
    if (!tokens) return nullptr;
    // A route is a token's way through one of its experts. Those through the same expert are consecutive rows.
    static thread_local Scratch scratch;
    char* memory = nullptr;
    int64_t needed = 0;
    auto take = [&](int64_t bytes) {
      const int64_t at = needed;
      needed += divided_up(bytes, 64) * 64;
      return memory ? memory + at : nullptr;
    };
    int64_t *experts, *rows, *starts;
    float *weights, *taken, *inner, *results;
    char *rounded, *rounded_inner;
    auto lay_out = [&] {
      needed = 0;
      experts = reinterpret_cast<int64_t*>(take(routes * 8)), rows = reinterpret_cast<int64_t*>(take(routes * 8));
      starts = reinterpret_cast<int64_t*>(take((experts_ + 1) * 8)),
      weights = reinterpret_cast<float*>(take(routes * 4));
      taken = reinterpret_cast<float*>(take(first_.rounds ? 0 : routes * depth * 4));
      inner = reinterpret_cast<float*>(take(routes * width_ * 4)),
      results = reinterpret_cast<float*>(take(routes * depth * 4));
      rounded = take(Rows::bytes(first_, routes)), rounded_inner = take(Rows::bytes(second_, routes));
    };
    lay_out();
    memory = scratch.get(needed);
    if (!memory) return error(ort::kFail, "PackedExperts: out of memory");
    lay_out();
    memset(starts, 0, (experts_ + 1) * 8);
    for (int64_t token = 0; token < tokens; ++token)
      route(router.as<float>() + token * experts_,
            router_weights.data ? router_weights.as<float>() + token * experts_ : nullptr, experts + token * chosen_,
            weights + token * chosen_);
    for (int64_t i = 0; i < routes; ++i) ++starts[experts[i] + 1];
    for (int64_t e = 0; e < experts_; ++e) starts[e + 1] += starts[e];
    for (int64_t i = 0; i < routes; ++i) rows[i] = starts[experts[i]]++;
    for (int64_t e = experts_; e > 0; --e) starts[e] = starts[e - 1];
    starts[0] = 0;
    const Rows tokens_of_experts(first_, routes, taken, rounded), values(second_, routes, inner, rounded_inner);
    const int64_t part = larger(1, 16384 / depth);
    TRY(context.parallel(divided_up(routes, part), [&](int64_t i) {
      for (int64_t at = i * part; at < smaller(routes, (i + 1) * part); ++at) {
        const float* token = x.as<float>() + at / chosen_ * depth;
        if (first_.rounds) tokens_of_experts.round(first_, rows[at], token);
        else memcpy(taken + rows[at] * depth, token, depth * 4);
      }
    }));
    TRY(each_panel(context, starts, divided_up(width_, kPanel), first_.rows_of_a_task(),
                   [&](int64_t e, int64_t index, int64_t begin, int64_t end) {
                     first.of(e).multiply_activated(activation_, tokens_of_experts, index, begin, end, inner, width_,
                                                    width_);
                   }));
    if (second_.rounds) {
      const int64_t few = larger(1, 16384 / width_);
      TRY(context.parallel(divided_up(routes, few), [&](int64_t i) {
        for (int64_t row = i * few; row < smaller(routes, (i + 1) * few); ++row)
          values.round(second_, row, inner + row * width_);
      }));
    }
    TRY(each_panel(context, starts, second_.panels, second_.rows_of_a_task(),
                   [&](int64_t e, int64_t panel, int64_t begin, int64_t end) {
                     second.of(e).multiply(values, panel, begin, end, results, depth);
                   }));
    // A token's experts are added up in the order of their rank.
    return context.parallel(divided_up(tokens, part), [&](int64_t i) {
      for (int64_t token = i * part; token < smaller(tokens, (i + 1) * part); ++token) {
        float* to = out + token * depth;
        for (int64_t j = 0; j < chosen_; ++j) {
          const float weight = weights[token * chosen_ + j], *result = results + rows[token * chosen_ + j] * depth;
          if (j)
            for (int64_t d = 0; d < depth; ++d) to[d] += weight * result[d];
          else
            for (int64_t d = 0; d < depth; ++d) to[d] = weight * result[d];
        }
      }
    });
  }

 private:
  // The experts of a token with the highest scores, of equal ones the last, and their weights.
  void route(const float* scores, const float* given, int64_t* experts, float* weights) const {
    for (int64_t j = 0; j < chosen_; ++j) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts_; ++e) {
        bool is_taken = false;
        for (int64_t i = 0; i < j; ++i) is_taken |= experts[i] == e;
        if (!is_taken && (best < 0 || scores[e] >= scores[best])) best = e;
      }
      experts[j] = best;
    }
    float total = 0;
    if (given) {
      for (int64_t j = 0; j < chosen_; ++j) total += weights[j] = given[experts[j]];
    } else {
      const float top = scores[experts[0]];
      for (int64_t j = 0; j < chosen_; ++j) total += weights[j] = expf(scores[experts[j]] - top);
      if (!is_normalized_) {
        total = 0;
        for (int64_t e = 0; e < experts_; ++e) total += expf(scores[e] - top);
      }
    }
    if (given && (!is_normalized_ || total == 0)) return;
    for (int64_t j = 0; j < chosen_; ++j) weights[j] /= total;
  }

  // Call work(expert, panel, first row, end) for all rows of each expert that has some.
  template <class Work>
  ort::Status each_panel(const Context& context, const int64_t* starts, int64_t panels, int64_t most,
                         const Work& work) const {
    int64_t parts = 0;
    for (int64_t e = 0; e < experts_; ++e) parts += divided_up(starts[e + 1] - starts[e], most);
    return context.parallel(parts * panels, [&](int64_t i) {
      int64_t part = i / panels, e = 0;
      for (int64_t number; part >= (number = divided_up(starts[e + 1] - starts[e], most)); ++e) part -= number;
      const int64_t begin = starts[e] + part * most;
      work(e, i % panels, begin, smaller(starts[e + 1], begin + most));
    });
  }

  MatrixSize first_, second_;
  Activation activation_;
  int64_t experts_, chosen_, width_;
  bool is_normalized_;
};

}  // namespace

ort::CustomOp packed_matmul_operator() { return described<PackedMatMul>(); }
ort::CustomOp packed_experts_operator() { return described<PackedExperts>(); }

}  // namespace native
