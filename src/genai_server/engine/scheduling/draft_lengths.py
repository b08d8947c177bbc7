"""Chooses how many tokens of each sequence's draft the next forward pass reads, in speculative decoding. `fit_drafts`
makes the choice.

A longer draft may have more accepted tokens, but its pass takes longer. The choice compares the chances of the tokens
to be accepted with the measured times of passes.
"""

from collections.abc import Sequence

from genai_server.engine.scheduling.drafts import MAX_LENGTH, Draft

# Minimum expected speed-up of a pass, in tokens per second, for drafts.
_MIN_GAIN = 1.05
# Tokens of drafts with a lower chance to be accepted are not read.
_MIN_CHANCE = 0.01


def fit_drafts(
    drafts: Sequence[Draft], seconds: Sequence[float], drafting: Sequence[float] = ()
) -> tuple[list[int], float]:
    """Choose the draft lengths that give the most tokens per second. Returns how many tokens of each draft in `drafts`
    the next pass should read, and the expected number of tokens per second of all sequences together.

    `drafts` has one draft for each sequence of the pass. `seconds` has the durations of passes of 0, 1, 2, … tokens,
    and no pass gets more tokens than it covers. A pass reads one token of each sequence in addition to the drafts.
    Draft tokens are added in the order of their probability to be accepted. `drafting` has the durations of the draft
    model's passes of 0, 1, 2, … tokens, which count for drafts that the draft model has yet to propose.
    """
    num_rows = len(drafts)
    # In a sequence's draft, each token is at most as likely to be accepted as the one before it. So when all tokens are
    # sorted by that chance, the tokens of each draft keep their order.
    chances = [
        (chance, row, position)
        for row, draft in enumerate(drafts)
        for position in range(1, draft.length + 1)
        if (chance := draft.share**position) >= _MIN_CHANCE
    ]
    chances.sort(key=lambda chance: -chance[0])
    del chances[max(0, len(seconds) - 1 - num_rows) :]
    best, per_second, accepted, draft_seconds = 0, num_rows / seconds[num_rows], 0.0, 0.0
    gain = _MIN_GAIN * per_second
    # Tokens of the draft model's passes, by the position of the first token that they make.
    passes = [0] * (MAX_LENGTH + 1)
    for number, (chance, row, position) in enumerate(chances, 1):
        accepted += chance
        if num_unread := drafts[row].num_unread:
            first_position = 1 if drafts[row].is_parallel else position
            draft_seconds -= _seconds(passes[first_position], drafting)
            passes[first_position] += num_unread if position == 1 else 1
            draft_seconds += _seconds(passes[first_position], drafting)
        if (rate := (num_rows + accepted) / (seconds[num_rows + number] + draft_seconds)) > gain:
            best, gain, per_second = number, rate, rate
    lengths = [0] * num_rows
    for _, row, _ in chances[:best]:
        lengths[row] += 1
    return lengths, per_second


def _seconds(num_tokens: int, times: Sequence[float]) -> float:
    """Return the estimated duration in seconds of a pass of `num_tokens` tokens. `times` has the durations of passes of
    0, 1, 2, … tokens.

    For more tokens than `times` covers, its last duration is increased in proportion. The result is 0 for no tokens, or
    if `times` has no durations.
    """
    maximum = len(times) - 1
    return times[min(num_tokens, maximum)] * max(1.0, num_tokens / maximum) if num_tokens and maximum > 0 else 0.0
