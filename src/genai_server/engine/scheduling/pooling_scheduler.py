"""Chooses the texts of the next pass of a model that gives vectors or scores.

A step has complete texts up to a budget of tokens, of all running requests: first of the one with the fewest tokens
left, where waiting counts like reading. The budget is derived from the measured times of passes, so that a new request
waits for a fraction of a second, unless a single text takes longer.
"""

from collections.abc import Iterator

from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import Read, Step
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import PooledText

# The target in seconds of a pass, within these numbers of tokens. Fewer would leave the cores idle at its edges;
# more would not be faster.
_SECONDS = 0.25
_MIN_TOKENS, _MAX_TOKENS = 512, 8192
# Most texts of a step: their vectors go out at once, and an API process with too many unread bytes is disconnected.
_MAX_TEXTS = 256


class PoolingScheduler(Scheduler):
    """A scheduler of requests whose texts are pooled."""

    def _passes(self) -> Iterator[Step]:
        budget = int(min(_MAX_TOKENS, max(_MIN_TOKENS, self._step_times.tokens_read_in(_SECONDS))))
        left = _MAX_TEXTS
        reads: list[Read] = []
        for sequence in sorted(self._active(), key=self._urgency):
            if (read := _next_texts(sequence, budget, left, is_first=not reads)) is not None:
                reads.append(read)
                budget -= read.num_tokens
                left -= len(read.texts)
        if reads:
            yield Step(reads)


def _next_texts(sequence: Sequence, budget: int, most: int, *, is_first: bool) -> Read | None:
    """The next texts of a request, at most `most`, of `budget` tokens; the first one of a step may have more."""
    texts: list[PooledText] = []
    num_tokens = 0
    for text in sequence.request.texts[sequence.num_texts : sequence.num_texts + most]:
        if num_tokens + text.num_tokens > budget and (texts or not is_first):
            break
        texts.append(text)
        num_tokens += text.num_tokens
    return Read.next(sequence, num_tokens, texts=texts) if texts else None
