"""Changes of the logits before a token is chosen: a request's logit bias and its three penalties."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.scores import Logits
from genai_server.messages.generation_request import Sampling

# Minimum absolute value of a bias that means, as OpenAI's API reference says, "a ban or exclusive selection".
_BAN_BIAS = 100.0


class Bias:
    """A request's `logit_bias`, by token id. It is added to the logits, except for bans and exclusive selection."""

    def __init__(self, biases: dict[int, float]) -> None:
        self._only = np.array([token for token, bias in biases.items() if bias >= _BAN_BIAS], np.int64)
        self._tokens = np.array([token for token, bias in biases.items() if bias < _BAN_BIAS], np.int64)
        added = np.array([bias for bias in biases.values() if bias < _BAN_BIAS], np.float32)
        self._added = np.where(added <= -_BAN_BIAS, np.float32(-np.inf), added)
        self._by_token = dict(zip(self._tokens.tolist(), self._added.tolist(), strict=True))
        # Whether a token may become likelier in relation to others that it does not name.
        self.raises = any(bias > 0 for bias in biases.values())

    def apply(self, logits: Logits, tokens: NDArray[np.int64] | None = None) -> None:
        """Change logits [vocab_size] in place, or those of some tokens if it raises none.

        Excluded tokens become minus infinity.
        """
        if tokens is not None:
            logits += np.array([self._by_token.get(token, 0.0) for token in tokens.tolist()], np.float32)
            return
        if self._only.size:
            kept = logits[self._only]
            logits.fill(-np.inf)
            logits[self._only] = kept
        logits[self._tokens] += self._added


class Penalties:
    """The penalties of one request and their counts. A step costs time for each different token that was penalised."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._repetition = np.float32(sampling.repetition_penalty)
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        limit = sampling.repeat_last_n
        # The last tokens, each with whether it belongs to the answer; None if all tokens count.
        self._window = None if limit < 0 else deque(((token, False) for token in prompt), maxlen=limit)
        penalized = [token for token, _ in self._window] if self._window is not None else prompt
        # Each different token, with its count, and with its count in the answer.
        self._tokens, self._counts = np.unique(
            np.array(penalized if self._repetition != 1.0 else [], np.int64), return_counts=True
        )
        self._answer_counts = np.zeros(self._tokens.size)
        self._places = {token: place for place, token in enumerate(self._tokens.tolist())}
        # Whether a token may become likelier.
        self.raises = self._repetition < 1.0 or self._frequency < 0.0 or self._presence < 0.0

    def apply(self, logits: Logits, tokens: NDArray[np.int64] | None = None) -> None:
        """Change logits [vocab_size] in place, or those of some tokens.

        First comes CTRL's repetition penalty (arXiv 1909.05858, section 4.1) for tokens of prompt and answer: positive
        scores are divided by it, negative ones multiplied. Then come OpenAI's penalties (API reference, "frequency and
        presence penalties") for tokens of the answer: `logit -= count · frequency + (count > 0) · presence`. Of both,
        only the last `repeat_last_n` tokens count.
        """
        indices, places = self._tokens, np.arange(self._tokens.size)
        if tokens is not None:
            pairs = enumerate(self._places.get(token, -1) for token in tokens.tolist())
            indices, places = np.array([pair for pair in pairs if pair[1] >= 0], np.int64).reshape(-1, 2).T
        scores, counts, answer_counts = logits[indices], self._counts[places], self._answer_counts[places]
        repeated = np.where(scores > 0, scores / self._repetition, scores * self._repetition)
        scores = np.where(counts > 0, repeated, scores)
        penalty = answer_counts * self._frequency + (answer_counts > 0) * self._presence
        logits[indices] = scores - penalty

    def count(self, token: int) -> None:
        """Count a token of the answer."""
        place = self._places.setdefault(token, self._tokens.size)
        if place == self._tokens.size:
            self._tokens = np.append(self._tokens, token)
            self._counts = np.append(self._counts, 0)
            self._answer_counts = np.append(self._answer_counts, 0.0)
        if self._window is not None:
            self._drop_oldest(self._window)
            self._window.append((token, True))
        self._counts[place] += 1
        self._answer_counts[place] += 1

    def _drop_oldest(self, window: deque[tuple[int, bool]]) -> None:
        """No longer count the token that the next one pushes out."""
        if len(window) == window.maxlen:
            token, is_of_answer = window[0]
            # Without a repetition penalty the prompt's tokens are not counted.
            if (place := self._places.get(token)) is not None and (is_of_answer or self._repetition != 1.0):
                self._counts[place] -= 1
                self._answer_counts[place] -= is_of_answer
