"""Log probabilities of tokens, and of the most likely ones in their places."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from genai_server.engine.sampling.sampler import top_tokens
from genai_server.engine.scores import Logits, Scores
from genai_server.messages.generation_request import TokenLogprob


def token_logprob(scores: Scores, token: int, num_top: int, scored: Sequence[int] = ()) -> TokenLogprob:
    """The natural logarithm of a token's softmax among the logits of the last position.

    With it come those of the `num_top` highest, and of the tokens `scored`.
    """
    logits: Mapping[int, float] | Logits
    best, tokens = scores.best, [] if scores.best is None else scores.best.tokens[-1].tolist()
    if best is not None and best.scales[-1] == 1.0 and num_top <= len(tokens) and {token, *scored} <= set(tokens):
        logits, top = dict(zip(tokens, best.logits[-1].tolist(), strict=True)), tokens[:num_top]
        log_of_sum = logits[tokens[0]] - np.log(best.shares[-1])
    else:
        logits = scores.last
        top = top_tokens(logits, num_top).tolist() if num_top else []
        highest = logits.max()
        log_of_sum = highest + np.log(np.exp(logits - highest).sum(dtype=np.float64))
    others = [(other, float(logits[other] - log_of_sum)) for other in (*top, *scored)]
    return TokenLogprob(token, float(logits[token] - log_of_sum), others)


def token_logprobs(positions: Logits, tokens: Iterable[int], num_top: int) -> list[TokenLogprob]:
    """The log probabilities of a token at each of the positions [tokens, vocab_size]. Copies one position at a time."""
    pairs = zip(positions, tokens, strict=True)
    return [token_logprob(Scores(logits[np.newaxis]), token, num_top) for logits, token in pairs]
