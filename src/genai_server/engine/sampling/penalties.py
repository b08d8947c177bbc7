"""Changes of the logits before a token is chosen: a request's logit bias and its three penalties."""

import numpy as np

from genai_server.engine.runners.scores import Logits
from genai_server.generation import Sampling

# From this value on a bias means, as OpenAI's API reference says, "a ban or exclusive selection".
_UTMOST_BIAS = 100.0


class Bias:
    """A request's `logit_bias`, by token id. It is added to the logits, except for bans and exclusive selection."""

    def __init__(self, biases: dict[int, float]) -> None:
        self._only = np.array([token for token, bias in biases.items() if bias >= _UTMOST_BIAS], np.int64)
        self._tokens = np.array([token for token, bias in biases.items() if bias < _UTMOST_BIAS], np.int64)
        added = np.array([bias for bias in biases.values() if bias < _UTMOST_BIAS], np.float32)
        self._added = np.where(added <= -_UTMOST_BIAS, np.float32(-np.inf), added)

    def apply(self, logits: Logits) -> None:
        """Change logits [vocab_size] in place. Excluded tokens become minus infinity."""
        if self._only.size:
            kept = logits[self._only]
            logits.fill(-np.inf)
            logits[self._only] = kept
        logits[self._tokens] += self._added


class Penalties:
    """The penalties of one request and their counts. A step costs time for each different penalised token."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self._repetition = np.float32(sampling.repetition_penalty)
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        # Each token once, with its count in the answer. Prompt tokens for the repetition penalty start with a count of
        # 0.
        self._tokens = np.unique(np.array(prompt, np.int64)) if self._repetition != 1.0 else np.empty(0, np.int64)
        self._counts = np.zeros(self._tokens.size)
        self._places = {token: place for place, token in enumerate(self._tokens.tolist())}

    def apply(self, logits: Logits) -> None:
        """Change logits [vocab_size] in place.

        First comes CTRL's repetition penalty (arXiv 1909.05858, section 4.1) for tokens of prompt and answer: positive
        scores are divided by it, negative ones multiplied. Then come OpenAI's penalties (API reference, "frequency and
        presence penalties") for tokens of the answer: `logit -= count · frequency + (count > 0) · presence`.
        """
        scores = logits[self._tokens]
        scores = np.where(scores > 0, scores / self._repetition, scores * self._repetition)
        penalty = self._counts * self._frequency + (self._counts > 0) * self._presence
        logits[self._tokens] = scores - penalty

    def count(self, token: int) -> None:
        """Count a token of the answer."""
        place = self._places.setdefault(token, self._tokens.size)
        if place == self._tokens.size:
            self._tokens = np.append(self._tokens, token)
            self._counts = np.append(self._counts, 0.0)
        self._counts[place] += 1


def penalizes(sampling: Sampling) -> bool:
    """Whether any penalty has an effect."""
    return (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1.0, 0.0, 0.0)
