// The kernel of an adapter's small matrices, which kernels.cpp includes. A token's sums are made in the order of the
// inputs, vector by vector, and of the ranks, next to any other tokens.

// The products of some tokens with some ranks, [TOKENS][ranks].
template <int TOKENS, int RANKS>
void reduce_tile(const LowRank& p, int token, int rank) {
  F sums[TOKENS][RANKS] = {};
  const float *x = p.x + token * p.inputs, *a = p.a + rank * p.inputs;
  int64_t i = 0;
  for (; i + W <= p.inputs; i += W)
    for (int r = 0; r < RANKS; ++r) {
      F weights = load<F>(a + r * p.inputs + i);
      for (int t = 0; t < TOKENS; ++t) sums[t][r] += load<F>(x + t * p.inputs + i) * weights;
    }
  for (int t = 0; t < TOKENS; ++t)
    for (int r = 0; r < RANKS; ++r) {
      float sum = reduce_add(sums[t][r]);
      for (int64_t j = i; j < p.inputs; ++j) sum += x[t * p.inputs + j] * a[r * p.inputs + j];
      p.scratch[(token + t) * p.ranks + rank + r] = sum;
    }
}

void low_rank(const LowRank& p) {
  int token = 0;
  for (; token + 4 <= p.tokens; token += 4) {
    int rank = 0;
    for (; rank + 4 <= p.ranks; rank += 4) reduce_tile<4, 4>(p, token, rank);
    for (; rank < p.ranks; ++rank) reduce_tile<4, 1>(p, token, rank);
  }
  for (; token < p.tokens; ++token) {
    int rank = 0;
    for (; rank + 4 <= p.ranks; rank += 4) reduce_tile<1, 4>(p, token, rank);
    for (; rank < p.ranks; ++rank) reduce_tile<1, 1>(p, token, rank);
  }
  memset(p.out, 0, p.tokens * p.outputs * 4);
  int64_t at[kLowRankTokens];
  for (int t = 0; t < p.tokens; ++t) at[t] = (int64_t)t * p.ranks;
  const int64_t whole = p.outputs / W * W;
  multiply(p.scratch, at, p.b, p.outputs, p.out, p.outputs, p.tokens, (int)whole, p.ranks);
  for (int t = 0; t < p.tokens; ++t)
    for (int64_t o = whole; o < p.outputs; ++o) {
      float sum = 0;
      for (int r = 0; r < p.ranks; ++r) sum += p.scratch[t * p.ranks + r] * p.b[r * p.outputs + o];
      p.out[t * p.outputs + o] = sum;
    }
}
