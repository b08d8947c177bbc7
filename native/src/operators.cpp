// The operators of the domain "genai_server.native" for ONNX Runtime. README.md describes their inputs and attributes.
#include "low_rank.h"
#include "operator.h"
#include "processor.h"
#include "products.h"
#include "states.h"

namespace native {

void* const* g_api;
const Kernels* g_kernels;

namespace {

constexpr int kMaxSets = 5;

// The kernels that this processor can run, the fastest first; returns their number.
int usable_kernels(const Kernels** found) {
  int number = 0;
#if defined(__x86_64__)
  const Features features = processor_features();
  if (features.avx512bf16) {
    if (const Kernels* amx = amx_kernels()) found[number++] = amx;
    found[number++] = &kernels_avx512bf16;
  }
  if (features.avx512vnni) found[number++] = &kernels_avx512vnni;
  if (features.avx2) found[number++] = &kernels_avx2;
#endif
  found[number++] = &kernels_base;
  return number;
}

// Use the kernels of a name, or the fastest if it is null. Returns whether this processor can run them.
bool use_kernels(const char* name) {
  const Kernels* usable[kMaxSets];
  const int number = usable_kernels(usable);
  for (int i = 0; i < number; ++i)
    if (!name || !strcmp(name, usable[i]->name)) return g_kernels = usable[i], true;
  return false;
}

// See README.md, RaggedAttention.
class RaggedAttention {
 public:
  static constexpr const char* kName = "RaggedAttention";
  enum Input {
    kQuery,
    kKey,
    kValue,
    kKeyCache,
    kValueCache,
    kStarts,
    kPasts,
    kSlots,
    kCos,
    kSin,
    kRopePlaces,
    kSinks,
    kQueryNorm,
    kKeyNorm
  };
  static constexpr size_t kInputs = 14;
  static int type(size_t index) {
    if (index == kKeyCache || index == kValueCache) return ort::kAny;
    if (index == kStarts || index == kPasts || index == kSlots) return ort::kInt32;
    return index == kRopePlaces ? ort::kInt64 : ort::kFloat;
  }
  static bool is_optional(size_t index) { return index == kKey || index == kValue || index >= kCos; }

  ort::Status open(const Attributes& given) {
    heads_ = (int)given.integer("num_heads", 0), cache_heads_ = (int)given.integer("kv_num_heads", 0);
    scale_ = given.real("scale", 0), softcap_ = given.real("softcap", 0),
    epsilon_ = given.real("qk_norm_epsilon", 1e-6f);
    window_ = larger(0, given.integer("local_window_size", 0));
    interleaved_ = given.integer("rotary_interleaved", 0) != 0, bf16_ = given.integer("bf16", 0) != 0;
    causal_ = given.integer("causal", 1) != 0;
    CHECK(heads_ > 0 && cache_heads_ > 0 && heads_ % cache_heads_ == 0 && heads_ < 65536,
          "RaggedAttention: num_heads %d is not a multiple of kv_num_heads %d", heads_, cache_heads_);
    return nullptr;
  }

  ort::Status compute(const Context& context) const {
    Pass pass;
    TRY(read(context, &pass));
    TRY(context.output(pass.out_shape, 3, &pass.out));
    if (!pass.tokens) return nullptr;
    static thread_local Scratch rotated, rows_of_tokens, parts_memory, results;
    pass.rotated = rotated.get<float>(pass.tokens * heads_ * pass.size * 4);
    auto* row_of = rows_of_tokens.get<int32_t>(pass.tokens * 4);
    if (!pass.rotated || !row_of) return out_of_memory();
    memset(row_of, -1, pass.tokens * 4);
    for (int64_t r = 0; r < pass.rows; ++r)
      for (int64_t t = pass.starts[r]; t < pass.starts[r + 1]; ++t) row_of[t] = (int32_t)r;
    constexpr int64_t kTokensOfTask = 8;
    auto prepare = [&](int64_t i) {
      for (int64_t t = i * kTokensOfTask; t < smaller(pass.tokens, (i + 1) * kTokensOfTask); ++t)
        if (row_of[t] >= 0) write_token(pass, row_of[t], t);
        else memset(pass.out + t * heads_ * pass.size, 0, heads_ * pass.size * 4);  // a token that fills up the pass
    };
    TRY(context.parallel(divided_up(pass.tokens, kTokensOfTask), prepare));

    int64_t num_parts = 0, num_shared = 0;
    plan(pass, nullptr, &num_parts, &num_shared);
    auto* parts = parts_memory.get<Part>(num_parts * (int64_t)sizeof(Part));
    const int64_t kept = kMaxShared * (pass.size + 2);
    auto* shared = results.get<float>(num_shared * kept * 4);
    if (!parts || (num_shared && !shared)) return out_of_memory();
    plan(pass, parts, &num_parts, &num_shared);
    bool has_failed = false;  // written by threads, only ever to true
    TRY(context.parallel(num_parts, [&](int64_t i) {
      const Part& part = parts[num_parts - 1 - i];  // the longest ones are last, and begin first
      if (!attend(pass, part, part.slot < 0 ? nullptr : shared + part.slot * kept))
        __atomic_store_n(&has_failed, true, __ATOMIC_RELAXED);
    }));
    if (has_failed) return out_of_memory();
    for (int64_t i = 0; i < num_parts; ++i) {  // merge what threads have shared, in the order of the keys
      const Part& part = parts[i];
      if (part.slot < 0 || !part.leads) continue;
      const int64_t n = part.tokens * pass.group;
      float* total = shared + part.slot * kept;
      for (int64_t j = i + 1; j < num_parts && parts[j].slot >= 0 && !parts[j].leads; ++j) {
        const float* next = shared + parts[j].slot * kept;
        g_kernels->merge(n, (int)pass.size, total, total + n, total + 2 * n, next, next + n, next + 2 * n);
      }
      finish(pass, part, total);
    }
    return nullptr;
  }

 private:
  // Queries, of tokens and heads together, whose keys threads may share.
  static constexpr int64_t kMaxShared = 32;

  // Consecutive tokens of a row, for one head of keys, and a range of keys.
  struct Part {
    int64_t row, head, token, tokens, begin, end;
    int64_t slot;  // of the results of a part whose keys are shared with others; -1 if it reads all keys itself
    bool leads;    // whether it has the first keys
  };

  struct Pass {
    int64_t tokens, rows, size, length, group, rotary;  // `rotary`: values of a head that are rotated
    int64_t out_shape[3];
    float* out;
    const float *query, *key, *value;  // of the first token
    int64_t query_stride, key_stride, value_stride;
    char *keys, *values;
    CacheType type;
    int64_t plane;  // bytes of a head in a slot
    const int32_t *starts, *pasts, *slots;
    const float *cos, *sin, *sinks, *query_norm, *key_norm;
    const int64_t* rope_places;
    float* rotated;
    float scale;
  };

  static ort::Status out_of_memory() { return error(ort::kFail, "RaggedAttention: out of memory"); }

  ort::Status read(const Context& context, Pass* pass) const {
    Tensor in[kInputs];
    for (size_t i = 0; i < kInputs; ++i) TRY(context.input(i, in + i));
    const Tensor &query = in[kQuery], &keys = in[kKeyCache], &values = in[kValueCache];
    CHECK(query.rank == 3 && query.shape[0] == 1, "RaggedAttention: the tokens must be [1, tokens, values]");
    CHECK(keys.rank == 4 && values.rank == 4 && keys.type == values.type && keys.shape[1] == cache_heads_ &&
              !memcmp(keys.shape, values.shape, 4 * sizeof(int64_t)),
          "RaggedAttention: keys and values must be [slots, %d, length, head_size] of one type", cache_heads_);
    TRY(cache_type(keys.type, &pass->type));
    const int64_t tokens = query.shape[1], size = keys.shape[3] - bytes_of_head(pass->type, 0), length = keys.shape[2],
                  rows = in[kPasts].count();
    CHECK(size >= 16 && size % 16 == 0 && size <= kMaxHeadSize,
          "RaggedAttention: head_size must be a multiple of 16 up to %d; given %lld", kMaxHeadSize, (long long)size);
    pass->tokens = tokens, pass->size = size, pass->length = length, pass->rows = rows,
    pass->group = heads_ / cache_heads_;
    pass->out_shape[0] = 1, pass->out_shape[1] = tokens, pass->out_shape[2] = heads_ * size;
    const bool is_packed = causal_ && !in[kKey].type;
    CHECK(causal_ || (!in[kKey].type && !in[kValue].type && length > 0),
          "RaggedAttention: without causal, tokens have no keys or values, and slots have some");
    const int64_t width = query.shape[2], key_width = cache_heads_ * size;
    CHECK(width == (heads_ + (is_packed ? 2 * cache_heads_ : 0)) * size, "RaggedAttention: a token has %lld values",
          (long long)width);
    pass->query = query.as<float>(), pass->query_stride = width;
    pass->key = pass->query + heads_ * size, pass->value = pass->key + key_width;
    pass->key_stride = pass->value_stride = width;
    if (causal_ && !is_packed) {
      CHECK(in[kKey].count() == tokens * key_width && in[kValue].data && in[kValue].count() == tokens * key_width,
            "RaggedAttention: the tokens' keys or values have a wrong size");
      pass->key = in[kKey].as<float>(), pass->value = in[kValue].as<float>();
      pass->key_stride = pass->value_stride = key_width;
    }
    pass->keys = keys.data, pass->values = values.data;
    pass->plane = length * bytes_of_head(pass->type, size);
    pass->starts = in[kStarts].as<int32_t>(), pass->pasts = in[kPasts].as<int32_t>(),
    pass->slots = in[kSlots].as<int32_t>();
    CHECK(in[kStarts].count() == rows + 1 && in[kSlots].count() == rows,
          "RaggedAttention: starts, pasts and slots are of other rows");
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t start = pass->starts[r], end = pass->starts[r + 1], past = pass->pasts[r], slot = pass->slots[r];
      CHECK(start >= 0 && start <= end && end <= tokens,
            "RaggedAttention: the tokens of row %d are %lld to %lld of %lld", (int)r, (long long)start, (long long)end,
            (long long)tokens);
      CHECK(past >= 0 && (!causal_ || past + end - start <= length) && slot >= 0 && slot < keys.shape[0],
            "RaggedAttention: row %d of %lld tokens behind %lld does not fit slot %lld of %lld with %lld tokens",
            (int)r, (long long)(end - start), (long long)past, (long long)slot, (long long)keys.shape[0],
            (long long)length);
    }
    pass->cos = in[kCos].as<float>(), pass->sin = in[kSin].as<float>(),
    pass->rope_places = in[kRopePlaces].as<int64_t>();
    pass->rotary = in[kCos].data ? 2 * in[kCos].last() : 0;
    CHECK(!pass->rope_places || in[kRopePlaces].count() == tokens,
          "RaggedAttention: there are rope places for %lld of %lld tokens", (long long)in[kRopePlaces].count(),
          (long long)tokens);
    if (pass->cos) TRY(check_ropes(in[kCos], in[kSin], in[kRopePlaces], *pass));
    pass->sinks = in[kSinks].as<float>(), pass->query_norm = in[kQueryNorm].as<float>(),
    pass->key_norm = in[kKeyNorm].as<float>();
    CHECK(!pass->sinks || in[kSinks].count() == heads_, "RaggedAttention: there must be a sink for each of %d heads",
          heads_);
    CHECK((!pass->query_norm || in[kQueryNorm].count() == size) && (!pass->key_norm || in[kKeyNorm].count() == size),
          "RaggedAttention: a norm must have %lld weights", (long long)size);
    pass->scale = scale_ > 0 ? scale_ : 1 / sqrtf((float)size);
    return nullptr;
  }

  static ort::Status cache_type(int element, CacheType* found) {
    *found = element == ort::kFloat     ? kCacheFloat
             : element == ort::kFloat16 ? kCacheHalf
             : element == ort::kInt8    ? kCacheInt8
                                        : kCacheBfloat;
    CHECK(*found != kCacheBfloat || element == ort::kBfloat16,
          "RaggedAttention: keys and values must be of type float, float16, bfloat16 or int8");
    return nullptr;
  }

  static ort::Status check_ropes(const Tensor& cos, const Tensor& sin, const Tensor& places, const Pass& pass) {
    CHECK(cos.rank == 2 && sin.rank == 2 && cos.shape[0] == sin.shape[0] && cos.shape[1] == sin.shape[1] &&
              pass.rotary <= pass.size,
          "RaggedAttention: cosines and sines must be [positions, up to head_size / 2]");
    for (int64_t r = 0; r < pass.rows; ++r)
      for (int64_t t = pass.starts[r]; t < pass.starts[r + 1]; ++t) {
        const int64_t place = places.data ? places.as<int64_t>()[t] : pass.pasts[r] + t - pass.starts[r];
        CHECK(place >= 0 && place < cos.shape[0],
              "RaggedAttention: position %lld has no cosines, which are for %lld positions", (long long)place,
              (long long)cos.shape[0]);
      }
    return nullptr;
  }

  static constexpr int kMaxHeadSize = 1024;

  // One head of a token, normed and rotated and multiplied by a factor.
  void turn(const Pass& pass, const float* from, const float* norm, int64_t place, float factor, float* to) const {
    float normed[kMaxHeadSize];
    const int64_t size = pass.size, rotary = pass.rotary, half = rotary / 2;
    if (norm) {
      float sum = 0;
      for (int64_t i = 0; i < size; ++i) sum += from[i] * from[i];
      const float by = 1 / sqrtf(sum / (float)size + epsilon_);
      for (int64_t i = 0; i < size; ++i) normed[i] = from[i] * by * norm[i];
      from = normed;
    }
    const float *c = pass.cos + place * half, *s = pass.sin + place * half;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t at = interleaved_ ? 2 * i : i, other = interleaved_ ? 2 * i + 1 : i + half;
      const float a = from[at], b = from[other];
      to[at] = (a * c[i] - b * s[i]) * factor, to[other] = (b * c[i] + a * s[i]) * factor;
    }
    for (int64_t i = rotary; i < size; ++i) to[i] = from[i] * factor;
  }

  // Write the queries of a flat token, and its keys and values into its slot.
  void write_token(const Pass& pass, int64_t row, int64_t token) const {
    const int64_t size = pass.size, position = pass.pasts[row] + token - pass.starts[row];
    const int64_t place = pass.rope_places ? pass.rope_places[token] : position;
    for (int h = 0; h < heads_; ++h)
      turn(pass, pass.query + token * pass.query_stride + h * size, pass.query_norm, place, pass.scale,
           pass.rotated + (token * heads_ + h) * size);
    if (!causal_) return;
    float turned[kMaxHeadSize];
    for (int h = 0; h < cache_heads_; ++h) {
      turn(pass, pass.key + token * pass.key_stride + h * size, pass.key_norm, place, 1, turned);
      const int64_t at =
          (pass.slots[row] * (int64_t)cache_heads_ + h) * pass.plane + position * bytes_of_head(pass.type, size);
      put(turned, pass.keys + at, size, pass.type);
      put(pass.value + token * pass.value_stride + h * size, pass.values + at, size, pass.type);
    }
  }

  static void put(const float* from, char* to, int64_t size, CacheType type) {
    if (type == kCacheFloat) return static_cast<void>(memcpy(to, from, size * 4));
    if (type == kCacheInt8) {
      float scale;
      int32_t sum;
      g_kernels->quantize(from, size, size, 1, reinterpret_cast<int8_t*>(to), &scale, &sum);
      return static_cast<void>(memcpy(to + size, &scale, sizeof scale));
    }
    for (int64_t i = 0; i < size; ++i)
      if (type == kCacheHalf) {
        reinterpret_cast<_Float16*>(to)[i] = static_cast<_Float16>(from[i]);
      } else {
        uint32_t bits;
        memcpy(&bits, from + i, 4);
        reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      }
  }

  // The position of a token; without `causal` that of the slot's last key, so that the token reads all of them.
  int64_t first_position(const Pass& pass, int64_t row, int64_t token) const {
    return causal_ ? pass.pasts[row] + token - pass.starts[row] : pass.length - 1;
  }

  // Divide a pass into parts: counts them, and writes them unless `parts` is null. Parts with many queries read all of
  // their keys; those with few share long ranges of keys.
  void plan(const Pass& pass, Part* parts, int64_t* num_parts, int64_t* num_shared) const {
    const int64_t most = larger(1, 112 / pass.group);  // tokens of a part
    int64_t count = 0, shared = 0;
    auto add = [&](const Part& part) {
      if (parts) parts[count] = part;
      ++count;
    };
    for (int64_t r = 0; r < pass.rows; ++r)
      for (int64_t t = pass.starts[r]; t < pass.starts[r + 1]; t += most) {
        const int64_t n = smaller(most, pass.starts[r + 1] - t), first = first_position(pass, r, t),
                      end = causal_ ? first + n : pass.length;
        const int64_t begin = window_ ? larger(0, first + 1 - window_) / kKeyBlock * kKeyBlock : 0;
        const bool is_alone = n * pass.group > kMaxShared || end - begin <= kKeyChunk;
        for (int64_t h = 0; h < cache_heads_; ++h)
          if (is_alone) add({r, h, t, n, begin, end, -1, true});
          else
            for (int64_t key = begin; key < end; key = key / kKeyChunk * kKeyChunk + kKeyChunk)
              add({r, h, t, n, key, smaller(end, key / kKeyChunk * kKeyChunk + kKeyChunk), shared++, key == begin});
      }
    *num_parts = count, *num_shared = shared;
  }

  // Attend with a part. Its sums go to `shared`, or if that is null, the result goes to the output. Returns false
  // without memory.
  bool attend(const Pass& pass, const Part& part, float* shared) const {
    static thread_local Scratch scratch;
    const int64_t n = part.tokens * pass.group, sums = n * (pass.size + 2), room = scratch_floats(n, (int)pass.size);
    auto* memory = scratch.get<float>((room + 2 * sums) * 4);
    if (!memory) return false;
    const int64_t at = (pass.slots[part.row] * (int64_t)cache_heads_ + part.head) * pass.plane;
    Attend a{};
    a.queries = pass.rotated + (part.token * heads_ + part.head * pass.group) * pass.size;
    a.token_stride = heads_ * pass.size, a.group = (int)pass.group, a.head_size = (int)pass.size,
    a.tokens = (int)part.tokens;
    a.keys = pass.keys + at, a.values = pass.values + at, a.type = pass.type, a.bf16 = bf16_ && g_kernels->has_bf16;
    a.softcap = softcap_, a.window = window_, a.first = first_position(pass, part.row, part.token);
    a.scratch = memory;
    auto into = [&](float* to) { a.top = to, a.sum = to + n, a.acc = to + 2 * n; };
    float *total = shared ? shared : memory + room, *next = memory + room + sums;
    for (int64_t key = part.begin; key < part.end; key = a.end) {
      into(key == part.begin ? total : next);
      a.begin = key, a.end = smaller(part.end, key / kKeyChunk * kKeyChunk + kKeyChunk);
      g_kernels->attend(a);
      if (key != part.begin)
        g_kernels->merge(n, a.head_size, total, total + n, total + 2 * n, next, next + n, next + 2 * n);
    }
    if (!shared) finish(pass, part, total);
    return true;
  }

  void finish(const Pass& pass, const Part& part, const float* sums) const {
    const int64_t n = part.tokens * pass.group, size = pass.size;
    for (int64_t m = 0; m < n; ++m) {
      const int64_t head = part.head * pass.group + m % pass.group;
      float* to = pass.out + ((part.token + m / pass.group) * heads_ + head) * size;
      g_kernels->finish((int)size, sums[m], sums[n + m], sums + 2 * n + m * size,
                        pass.sinks ? pass.sinks + head : nullptr, to);
    }
  }

  int heads_, cache_heads_;
  bool bf16_, interleaved_, causal_;
  float scale_, softcap_, epsilon_;
  int64_t window_;
};

ort::Status add_domain(ort::Opaque* options) {
  // One domain for the life of the process: sessions keep pointers into it.
  static ort::Opaque* domain = nullptr;
  static ort::CustomOp operators[6];
  if (!domain) {
    operators[0] = packed_matmul_operator();
    operators[1] = described<RaggedAttention>();
    operators[2] = convolution_operator();
    operators[3] = linear_attention_operator();
    operators[4] = low_rank_operator();
    operators[5] = packed_experts_operator();
    ort::Opaque* made = nullptr;
    TRY(call(ort::kCreateCustomOpDomain, "genai_server.native", &made));
    for (ort::CustomOp& op : operators)
      TRY(call(ort::kCustomOpDomainAdd, made, static_cast<const ort::CustomOp*>(&op)));
    domain = made;
  }
  return call(ort::kAddCustomOpDomain, options, domain);
}

}  // namespace
}  // namespace native

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Called by SessionOptions.register_custom_ops_library; not at the same time by two threads.
EXPORT ort::Status RegisterCustomOps(ort::Opaque* options, const ort::ApiBase* base) {
  native::g_api = base->get_api(ort::kApiVersion);
  if (!native::g_kernels) native::use_kernels(nullptr);
  return native::add_domain(options);
}

// The instruction sets that this processor can run, the fastest first, with a space behind each.
EXPORT const char* genai_native_instruction_sets() {
  static char names[16 * native::kMaxSets];
  const native::Kernels* usable[native::kMaxSets];
  const int number = native::usable_kernels(usable);
  names[0] = 0;
  for (int i = 0; i < number; ++i) {
    strcat(names, usable[i]->name);
    strcat(names, " ");
  }
  return names;
}

// Use the kernels of an instruction set in this process from now on; 0 if this processor cannot run them.
EXPORT int genai_native_use(const char* name) { return native::use_kernels(name); }
