"""Shares the time between the sequences that decode and the prompt that is read, by what passes were seen to take."""

# A chunk of prompt may take so many times what the round's decoding took. A running stream's tokens then take at most
# four times as long, and the prompt 4/3 of its time alone, and what small chunks cost besides.
PROMPT_SHARE = 3.0
# Smaller chunks cost a prompt more than they give the others, for each pass reads all weights; a lone stream waits
# about 50 ms for one with a model of 0.4 B parameters on two cores.
LEAST_CHUNK = 16
# How much the newest measurement counts.
_WEIGHT = 0.3


class Pace:
    """The seconds of this round's decoding, and of a prompt's token."""

    def __init__(self) -> None:
        self._decoding = 0.0
        self._per_token: float | None = None

    def begin_round(self) -> None:
        """Nothing has been decoded in this round yet."""
        self._decoding = 0.0

    def decoded(self, seconds: float) -> None:
        """A pass of decoding took so long."""
        self._decoding += seconds

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """A pass that read so many tokens of a prompt took so long."""
        newest = seconds / num_tokens
        self._per_token = newest if self._per_token is None else (1 - _WEIGHT) * self._per_token + _WEIGHT * newest

    def chunk(self, most: int) -> int:
        """How many tokens of a prompt to read now, at most `most`; few as long as nothing has been measured."""
        fitting = PROMPT_SHARE * self._decoding / self._per_token if self._per_token else 0.0
        return min(most, max(LEAST_CHUNK, int(fitting)))
