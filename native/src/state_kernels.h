// Kernels of layers with states, which kernels.cpp includes. A token's result depends on the tokens before it in its
// row only, and its sums are made in the order of the state's rows.

constexpr int kFewTokens = 4;

// A causal convolution of some channels over the tokens of a row. Each token's inputs are added in their order.
void convolve(const Convolve& p) {
  const int64_t kept = p.width - 1;
  auto input = [&](int64_t position) {  // of the row: the state has those before its first token
    return position < 0 ? p.state + (kept + position) * p.stride : p.tokens + position * p.stride;
  };
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    float* out = p.out + t * p.stride;
    for (int64_t c = 0; c < p.channels; c += W) {
      const int64_t n = p.channels - c < W ? p.channels - c : W;
      float in[W] = {}, weight[W] = {};
      F sum = {};
      if (p.bias) {
        memcpy(in, p.bias + c, n * 4);
        sum = load<F>(in);
      }
      for (int k = 0; k < p.width; ++k) {
        const float* from = input(t + k - kept) + c;
        if (n == W) {
          sum += load<F>(from) * load<F>(p.weights + k * p.stride + c);
        } else {
          memcpy(in, from, n * 4), memcpy(weight, p.weights + k * p.stride + c, n * 4);
          sum += load<F>(in) * load<F>(weight);
        }
      }
      if (p.silu) {
        F e = exp_of(-max(sum, -sum));
        sum = sum * (sum > 0.0f ? all(1.0f) : e) / (e + 1.0f);
      }
      if (n == W) store(out + c, sum);
      else store(in, sum), memcpy(out + c, in, n * 4);
    }
  }
  // The state has the last inputs up to the committed token. The oldest is written first, from a later place.
  if (p.committed)
    for (int64_t i = 0; i < kept; ++i) {
      float* to = p.state + i * p.stride;
      const float* from = input(p.committed + i - kept);
      if (from != to) memcpy(to, from, p.channels * 4);
    }
}

// Some columns of the state of a head, [size][columns], over the tokens of a row:
//   S = decay * S + key ⊗ (rate * (value - (decay * S)ᵀ key)),   out = scale * Sᵀ query
// where there is no rate, the second factor is the value itself.
//
// Sums are made apart over the even and the odd rows of the state. With BY_KEY, each row of the state has a decay of
// its own. Where all tokens are committed and there are few, the state is changed in place; otherwise a copy is, which
// lies together in the first-level cache.
template <int VECS, bool BY_KEY>
void recur_columns(const Recur& p) {
  const int size = p.size;
  const bool is_whole = p.columns == VECS * W,
             in_place = is_whole && p.committed == p.num_tokens && p.num_tokens <= kFewTokens;
  const int64_t stride = in_place ? p.value_size : VECS * W;
  float *state = in_place ? p.state : p.scratch, *decays = p.scratch + size * kColumns;
  float pad[kColumns] = {};
  auto read = [&](const float* from, F* to) {
    if (!is_whole) memcpy(pad, from, p.columns * 4), from = pad;
    for (int v = 0; v < VECS; ++v) to[v] = load<F>(from + v * W);
  };
  auto write = [&](float* to, const F* from) {
    if (is_whole) {
      for (int v = 0; v < VECS; ++v) store(to + v * W, from[v]);
    } else {
      for (int v = 0; v < VECS; ++v) store(pad + v * W, from[v]);
      memcpy(to, pad, p.columns * 4);
    }
  };
  F row[VECS];
  if (!in_place)
    for (int i = 0; i < size; ++i) {
      read(p.state + i * p.value_size, row);
      for (int v = 0; v < VECS; ++v) store(state + i * stride + v * W, row[v]);
    }
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const float *key = p.keys + t * p.key_stride, *query = p.queries + t * p.query_stride;
    const float decay = p.decays && !BY_KEY ? expf(p.decays[t * p.decay_stride]) : 1;
    if (BY_KEY)
      for (int i = 0; i < size; ++i) decays[i] = expf(p.decays[t * p.decay_stride + i]);
    F change[VECS], sums[2][VECS] = {};
    read(p.values + t * p.value_stride, change);
    if (p.rates) {
      for (int i = 0; i < size; i += 2)
        for (int n = 0; n < 2; ++n)
          for (int v = 0; v < VECS; ++v)
            sums[n][v] +=
                load<F>(state + (i + n) * stride + v * W) * (BY_KEY ? decays[i + n] * key[i + n] : key[i + n]);
      const float rate = p.rates[t * p.rate_stride];
      for (int v = 0; v < VECS; ++v) change[v] = (change[v] - (sums[0][v] + sums[1][v]) * decay) * rate;
      for (int v = 0; v < VECS; ++v) sums[0][v] = sums[1][v] = F{};
    }
    for (int i = 0; i < size; i += 2)
      for (int n = 0; n < 2; ++n)
        for (int v = 0; v < VECS; ++v) {
          float* at = state + (i + n) * stride + v * W;
          F s = load<F>(at) * (BY_KEY ? decays[i + n] : decay) + change[v] * key[i + n];
          store(at, s);
          sums[n][v] += s * query[i + n];
        }
    for (int q = 0;;) {
      for (int v = 0; v < VECS; ++v) row[v] = (sums[0][v] + sums[1][v]) * p.scale;
      write(p.out + t * p.out_stride + q * p.value_size, row);
      if (++q == p.num_queries) break;
      query += size;
      for (int v = 0; v < VECS; ++v) sums[0][v] = sums[1][v] = F{};
      for (int i = 0; i < size; i += 2)
        for (int n = 0; n < 2; ++n)
          for (int v = 0; v < VECS; ++v) sums[n][v] += load<F>(state + (i + n) * stride + v * W) * query[i + n];
    }
    if (!in_place && t + 1 == p.committed)
      for (int i = 0; i < size; ++i) {
        for (int v = 0; v < VECS; ++v) row[v] = load<F>(state + i * stride + v * W);
        write(p.state + i * p.value_size, row);
      }
  }
}

template <int VECS>
void recur_columns(const Recur& p) {
  p.decays_by_key ? recur_columns<VECS, true>(p) : recur_columns<VECS, false>(p);
}

void recur(const Recur& p) {
  if (p.columns <= W) recur_columns<1>(p);
  else recur_columns<kColumns / W>(p);
}
