"""Log probabilities of tokens, and of the most likely ones in their places."""

from collections.abc import Iterable, Sequence

import numpy as np

from genai_server.engine.runners.scores import Logits
from genai_server.engine.sampling.sampler import top_tokens
from genai_server.messages.generation_request import TokenLogprob


def token_logprob(logits: Logits, token: int, num_top: int, scored: Sequence[int] = ()) -> TokenLogprob:
    """The natural logarithm of a token's softmax among `logits` [vocab_size].

    With it come those of the `num_top` highest, and of the tokens `scored`.
    """
    best = logits.max()
    log_of_sum = best + np.log(np.exp(logits - best).sum(dtype=np.float64))
    top = [*(top_tokens(logits, num_top).tolist() if num_top else []), *scored]
    return TokenLogprob(
        token, float(logits[token] - log_of_sum), [(other, float(logits[other] - log_of_sum)) for other in top]
    )


def token_logprobs(positions: Logits, tokens: Iterable[int], num_top: int) -> list[TokenLogprob]:
    """The log probabilities of a token at each of the positions [tokens, vocab_size]. Copies one position at a time."""
    return [token_logprob(logits, token, num_top) for logits, token in zip(positions, tokens, strict=True)]
