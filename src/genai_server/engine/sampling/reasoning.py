"""Limits how many tokens a model may spend on reasoning before its answer: when the budget is used, tokens that end the
reasoning are inserted, which the model has not chosen (`ReasoningTracker`).

Markers in the text, such as "</think>", show where reasoning begins and ends. They are the same as in the answer parser
(text/answers/reasoning.py). A marker is one token in some vocabularies and several in others, of which the first and
the last may also contain other text.
"""

import codecs
import re
from collections import deque
from collections.abc import Callable, Sequence

from genai_server.messages.generation_request import ReasoningRules

# How many of an answer's last characters are searched for a marker. No marker is longer, nor the header of a message.
_SEARCHED = 512
# Characters of an answer, whitespace at its beginning aside, without a marker that show that it has no reasoning.
_PLAIN = 64
# The end of a sentence or line; a dot behind a digit may belong to a number.
_SENTENCE_END = re.compile(r"""((?<!\d)\.|[!?…。！？]|\n)["'”’»)\]*_`]*\s*\Z""")


class ReasoningTracker:
    """Follows the reasoning in one answer, and says which tokens must come next to end it when its budget of tokens is
    used. The engine creates it with the sequence, if the request has rules for reasoning.

    `rules` has the budget, the markers, and the tokens that end the reasoning. `token_bytes` returns the UTF-8 bytes of
    a token, and the answer's tokens begin at index `first` of the sequence. Without a budget, the answer is not
    examined. Only one thread at a time may call methods, except `end`, which any thread may call.
    """

    def __init__(self, rules: ReasoningRules, token_bytes: Callable[[int], bytes], first: int = 0) -> None:
        # Whether the answer is within reasoning, and whether no further reasoning can follow.
        self._is_open, self._is_over = rules.is_open, False
        # The next tokens, if these are not chosen by the model.
        self._forced: deque[int] = deque()
        # Tokens of all reasoning, and their limit, if any.
        self._num_tokens, self._budget = 0, rules.budget
        self._rules = rules
        self._ending: Sequence[int] = rules.end
        self._opening, self._closing = re.compile(rules.opening), re.compile(rules.closing)
        self._token_bytes = token_bytes
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_read = first  # tokens of the sequence
        self._end = ""  # of their text, from the last marker on

    @property
    def forced(self) -> Sequence[int]:
        """The tokens that will come next in the answer because they end the reasoning, in order; empty if the model
        chooses the next token.
        """
        return list(self._forced)

    def next_token(self, tokens: Sequence[int], allows: Callable[[int], bool]) -> int | None:
        """Return the token that must come next in the sequence because it ends the reasoning; None if the model may
        choose the next token. Must be called before each token of the answer.

        `tokens` are all tokens of the sequence so far. `allows` says whether the answer's grammar allows a token. If
        the grammar does not allow the reasoning to end here, because a tool call has begun within the reasoning, the
        reasoning ends as soon as the grammar allows it.
        """
        if self._budget is None:
            return None
        for token in tokens[self._num_read :]:
            self._note(token)
        self._num_read = len(tokens)
        begins = not self._forced and self._must_close
        if begins:
            self._forced.extend(self._ending)
        if not self._forced:
            return None
        if not allows(self._forced[0]):
            self._forced.clear()
            return None
        if begins:
            self._ending = self._rules.later_end
        return self._forced.popleft()

    def end(self) -> None:
        """End the reasoning as soon as possible, as if its budget were used. Further reasoning in this answer is then
        ended at once, too. Any thread may call this.
        """
        self._budget = 0

    def _note(self, token: int) -> None:
        if self._is_over:
            return
        self._end = (self._end + self._characters.decode(self._token_bytes(token)))[-_SEARCHED:]
        self._num_tokens += self._is_open
        marker = (self._closing if self._is_open else self._opening).search(self._end)
        if marker is not None:
            self._is_open, self._end = not self._is_open, self._end[marker.end() :]
            self._is_over = not self._is_open and not self._rules.allows_several
        elif not self._is_open and not self._rules.allows_several:
            self._is_over = len(self._end.lstrip()) > _PLAIN

    @property
    def _must_close(self) -> bool:
        """Whether the budget is used, so that the reasoning must end now. In the last tenth of the budget it already
        ends after a sentence, and it never ends between the tokens of one character.
        """
        if not self._is_open or self._budget is None or self._characters.getstate()[0]:
            return False
        num_left = self._budget - self._num_tokens
        return num_left <= 0 or (num_left <= self._budget // 10 and _SENTENCE_END.search(self._end) is not None)
