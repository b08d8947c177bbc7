"""What ONNX Runtime's kernels read alike in any pass, as rules for the tokens of a pass."""

from genai_server.engine.sequence import Sequence

# ONNX Runtime's attention on CPUs processes a chunk in blocks. Measured: 64 tokens with a head size of 32, 128 with 64.
# A block of one token is not bitwise equal. Block sizes are multiples of this.
_QUERY_BLOCK = 16
# Matrix kernels process the tokens of a chunk in groups. Tokens left over at its end are not bitwise equal. Group sizes
# divide this.
_ROW_GROUPS = 8
# A prompt of at least this many unread tokens has a state checkpoint near its end, if its model has states.
_MIN_CHECKPOINT = 64
# Tokens behind that checkpoint, at least. The next prompt of a conversation often differs in the last ones, which begin
# the answer.
_BEHIND_CHECKPOINT = 8


def fit_chunk(sequence: Sequence, most: int) -> int:
    """How many of a prompt's unread tokens to read in a pass of at most `most` tokens.

    Other kernels, which are not bitwise equal, would read the tokens left over. So a chunk has at least two tokens,
    unless the prompt has one; it does not end one token beyond a block of the attention; and every chunk but the last
    has whole groups of tokens.

    When an exact sequence is read again, its own answer is read token by token, as it was decoded.
    """
    # The last produced token is left to a pass of its own, from which the sequence decodes as before.
    left = sequence.num_unread - (1 if sequence.num_produced else 0)
    if sequence.request.exact and sequence.num_produced:
        left = len(sequence.request.prompt) - sequence.num_read
        if left <= 0:
            return 1
    group = min(_ROW_GROUPS, 1 << (most.bit_length() - 1))

    def is_read_alike(chunk: int) -> bool:
        return (chunk == left or chunk % group == 0) and chunk % _QUERY_BLOCK != 1 and left - chunk != 1

    return next(filter(is_read_alike, range(min(most, left), 1, -1)), left)


def before_checkpoint(chunk: int, num_left: int, num_common: int = 0) -> int:
    """How many tokens of a prompt's next chunk to read before a state checkpoint.

    There is one near the end of a prompt with `num_left` unread tokens, and one behind the next `num_common` tokens if
    other prompts begin with these.
    """
    end = (num_left - _BEHIND_CHECKPOINT) // _ROW_GROUPS * _ROW_GROUPS
    common = num_common // _ROW_GROUPS * _ROW_GROUPS
    borders = [border for border in (common, end) if _MIN_CHECKPOINT - _BEHIND_CHECKPOINT <= border < chunk]
    return min(borders, default=chunk)


def ends_at_checkpoint(num_left: int) -> bool:
    """Whether a chunk ends near enough to the end of its prompt for a checkpoint there."""
    return 0 < num_left < _MIN_CHECKPOINT


def is_common_end(num_behind: int) -> bool:
    """Whether a length is that of a checkpoint, if `num_behind` more tokens are what other prompts begin with."""
    return 0 <= num_behind < _ROW_GROUPS


def may_draft(sequence: Sequence) -> bool:
    """Whether a draft may follow a sequence's newest token.

    Several tokens are not bitwise equal to single ones, and a draft's length follows measured times. So exact
    sequences have no drafts, and neither have those with a seed, which is given to have the same tokens again.
    """
    return not sequence.by_library and not sequence.request.exact and sequence.request.sampling.seed is None
