"""The rules for the tokens of a transcript (openai/whisper, decoding.py: SuppressTokens and
ApplyTimestampRules).
"""

from collections.abc import Sequence

import numpy as np

from genai_server.engine.scores import Logits
from genai_server.messages.generation_request import TranscriptRules


def with_rules(rules: TranscriptRules, transcript: Sequence[int], logits: Logits) -> Logits:
    """A copy of the logits [vocab_size] after the tokens of a transcript. Minus infinity marks excluded tokens."""
    logits = logits.copy()
    logits[rules.suppressed] = -np.inf
    _time(rules, transcript, logits)
    return logits


def _time(rules: TranscriptRules, transcript: Sequence[int], logits: Logits) -> None:
    """Exclude what would put timestamps into a wrong order."""
    first, end = rules.first_timestamp, rules.end_of_text
    texts, times = logits[:first], logits[first:]
    if not transcript:
        texts[:] = -np.inf
        times[rules.max_first + 1 :] = -np.inf
        return
    last_is_time = transcript[-1] >= first
    before_is_time = len(transcript) < 2 or transcript[-2] >= first
    if last_is_time and before_is_time:  # a segment begins here, and has text
        times[:] = -np.inf
    elif last_is_time:  # a segment ended here: either the next one begins, or the transcript ends
        at_end = logits[end]
        texts[:] = -np.inf
        logits[end] = at_end
    latest = max((token for token in transcript if token >= first), default=None)
    if latest is not None:
        # A segment is not empty, but the next one may begin where it ended.
        times[: latest - first + (0 if last_is_time and not before_is_time else 1)] = -np.inf
    best_text = texts.max()
    with np.errstate(over="ignore"):
        if best_text > -np.inf and np.exp(times - best_text).sum() > 1:  # the times together beat any one text
            texts[:] = -np.inf
