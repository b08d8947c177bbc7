"""Where state checkpoints lie: at lengths of a prompt at which other prompts may end to have the same tokens.

A checkpoint is a copy of the states of fixed size that some layers keep of a sequence (engine/kv_cache/kv_slots.py).
"""

# A prompt of at least this many unread tokens has a checkpoint near its end.
_MIN_UNREAD = 32
# Tokens behind that checkpoint, at least. The next prompt of a conversation often differs in the last ones, which begin
# the answer.
_BEHIND = 6
# Checkpoints lie at multiples of this behind cached tokens, so that prompts that differ a little have the same ones.
_GROUP = 8


def before_checkpoint(chunk: int, num_left: int, num_common: int = 0) -> int:
    """How many tokens of a prompt's next chunk to read before a checkpoint.

    There is one near the end of a prompt with `num_left` unread tokens, and one behind the next `num_common` tokens if
    other prompts begin with these.
    """
    end = (num_left - _BEHIND) // _GROUP * _GROUP if num_left >= _MIN_UNREAD else 0
    common = num_common // _GROUP * _GROUP if num_common >= _MIN_UNREAD else 0
    return min((border for border in (common, end) if 0 < border < chunk), default=chunk)


def ends_at_checkpoint(num_left: int) -> bool:
    """Whether a chunk ends near enough to the end of its prompt, or at it, for a checkpoint there.

    The next prompt of a conversation continues from the end if it leaves out the answer's reasoning. It continues from
    near the end if its template also leaves out the last tokens of this prompt.
    """
    return num_left < _MIN_UNREAD


def is_common_end(num_behind: int) -> bool:
    """Whether a length is that of a checkpoint, if `num_behind` more tokens are what other prompts begin with."""
    return 0 <= num_behind < _GROUP
