"""Turns the tokens of one answer into what clients receive, while the model generates them.

`AnswerText` decodes the tokens, ends the answer at a stop string (`StopStrings`) and returns parts, which are content,
reasoning and tool calls, and tokens with log probabilities. `AnswerParser` separates the parts of an answer.
`PlainParser` is for answers that have only content.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from genai_server.messages.generation_request import TokenLogprob
from genai_server.text.answers.parsing import SPACE, Lookahead, Reader
from genai_server.text.answers.reasoning import HARMONY, ReasoningFormat, ReasoningReader
from genai_server.text.tokenizer import Decoder
from genai_server.text.tool_formats.harmony import read_messages
from genai_server.text.tool_formats.tool_format import Calls, ToolFormat


class StopStrings:
    """Finds the stop strings of a request in an answer's text, which arrives in pieces. AnswerText creates it for one
    answer.

    The first stop string that is complete ends the text. If several are complete at the same character, the longest
    counts. The stop string is removed from the text, unless `is_shown` is set. No stop string may be empty. The
    attribute `found` is the stop string that has ended the text, or None.
    """

    def __init__(self, strings: Collection[str], *, is_shown: bool = False) -> None:
        # The stop string that ended the text.
        self.found: str | None = None
        self._is_shown = is_shown
        self._by_first_character: defaultdict[str, list[_Search]] = defaultdict(list)
        for string in strings:
            self._by_first_character[string[0]].append(_Search(string))
        # Those of which the text so far ends with a beginning. With many stop strings, these are still few.
        self._begun: list[_Search] = []
        # Text held back because it may be the beginning of a stop string.
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Process the next piece of the answer's text.

        Returns the text that can be shown now, and whether a stop string has ended the text. Text that may be the
        beginning of a stop string is held back until the next call. After the end, the returned text is always "".
        """
        if self.found is not None:
            return "", True
        if not self._begun and self._by_first_character.keys().isdisjoint(text):
            return text, False
        for n, character in enumerate(text):
            complete = self._advance(character)
            if complete:
                self.found = max(complete, key=len)
                shown = self._held + text[: n + 1]
                shown = shown if self._is_shown else shown.removesuffix(self.found)
                self._held = ""
                return shown, True
        text = self._held + text
        shown = text[: len(text) - max((search.num_matched for search in self._begun), default=0)]
        self._held = text[len(shown) :]
        return shown, False

    def finish(self) -> str:
        """Return the text that was held back as the possible beginning of a stop string. To be called when no more text
        follows.
        """
        held_back, self._held = self._held, ""
        return held_back

    def _advance(self, character: str) -> list[str]:
        """Process one character of the answer and return the stop strings that end with it."""
        starting = self._by_first_character.get(character, ())
        searches = [*self._begun, *(search for search in starting if not search.num_matched)]
        complete = [search.string for search in searches if search.advance(character)]
        self._begun = [search for search in searches if search.num_matched]
        return complete


class _Search:
    """Search for one stop string, character by character, with the algorithm of Knuth, Morris and Pratt."""

    def __init__(self, string: str) -> None:
        self.string = string
        # Number of the string's first characters that the text so far ends with.
        self.num_matched = 0
        # For each number of matching characters, the next smaller number that also matches. It grows with the longest
        # match so far: most stop strings never match more than a few characters, and there may be many long ones.
        self._shorter = [0, 0]

    def advance(self, character: str) -> bool:
        """Process one character of the answer and return whether the text so far ends with the complete stop string."""
        for length in range(len(self._shorter), self.num_matched + 1):
            self._shorter.append(self._after(self._shorter[-1], self.string[length - 1]))
        self.num_matched = self._after(self.num_matched, character)
        return self.num_matched == len(self.string)

    def _after(self, num_matched: int, character: str) -> int:
        while num_matched and self.string[num_matched] != character:
            num_matched = self._shorter[num_matched]
        return num_matched + 1 if self.string[num_matched] == character else 0


# OpenAI's log probability of an impossible token: JSON has no infinity.
_IMPOSSIBLE = -9999.0


class PlainParser:
    """Parser for answers without reasoning and tool calls: it returns all text as content.

    It is also the base class of AnswerParser, which separates the parts of an answer.
    """

    @property
    def is_within(self) -> bool:
        """Whether the text so far ends within reasoning or within a tool call that is not complete."""
        return False

    def feed(self, text: str) -> list[Part]:
        """Parse the next piece of the answer's text and return the parts (content, reasoning, tool calls) that can be
        shown now.

        Neighbouring pieces of content, or of reasoning, are returned as one part.
        """
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Return the parts that are still held back when the answer has ended."""
        return []


class AnswerText:
    """Converts the tokens of one answer to parts (content, reasoning, tool calls), as they arrive.

    It decodes the tokens, ends the answer at a stop string or before the tool call that exceeds `max_calls` (None for
    no limit), and lets `parser` separate the parts. It also returns scored tokens, which are tokens with log
    probabilities, each together with the first character of its text; if a stop string removed this character, the
    token is omitted.

    `shows_stop` makes the stop string a part of the answer. `offset` is the number of characters that precede the first
    token in the answer, such as those of an echoed prompt. The attribute `is_stopped` says that the text has ended
    although the engine may generate more tokens, and `num_reasoning` counts the tokens that consist of reasoning only.
    """

    def __init__(
        self,
        decoder: Decoder,
        stop_strings: Collection[str],
        parser: PlainParser,
        token_bytes: Callable[[int], bytes],
        *,
        offset: int = 0,
        max_calls: int | None = None,
        shows_stop: bool = False,
    ) -> None:
        # Whether the text ended before the engine ended the answer.
        self.is_stopped = False
        # Number of tokens that consist of reasoning only.
        self.num_reasoning = 0
        self._decoder = decoder
        self._stop = StopStrings(stop_strings, is_shown=shows_stop) if stop_strings else None
        self._parser = parser
        self._token_bytes = token_bytes
        # Maximum number of complete tool calls; None for any number.
        self._max_calls = max_calls
        self._num_calls = 0
        # Scored tokens without a shown character.
        self._held: list[ScoredToken] = []
        # Number of characters so far, including the echoed prompt.
        self._decoded = self._shown = offset

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> tuple[list[Part], list[ScoredToken]]:
        """Decode the next token of the answer. `logprob` has the token's log probabilities; None if the request wants
        none.

        Returns the parts that can be shown now, and the scored tokens whose text can be shown now.
        """
        text = self._decoder.decode([token])
        if logprob is not None:
            self._held.append(self.scored(logprob, self._decoded))
        self._decoded += len(text)
        shown = text
        if self._stop is not None:
            shown, self.is_stopped = self._stop.feed(text)
        self._shown += len(shown)
        parts = self._within_calls(self._parser.feed(shown)) if shown else []
        if parts and type(parts[0]) is Reasoning and all(isinstance(part, Reasoning) for part in parts):
            self.num_reasoning += 1
        return parts, self._released() if self._held else []

    def finish(self) -> tuple[list[Part], list[ScoredToken]]:
        """Return the parts and scored tokens that are still held back when the answer has ended."""
        held_back = "" if self.is_stopped or self._stop is None else self._stop.finish()
        self._shown += len(held_back)
        parts = self._within_calls((self._parser.feed(held_back) if held_back else []) + self._parser.finish())
        tokens = self._released() if self.is_stopped else self._held
        self._held = []
        return parts, tokens

    def _within_calls(self, parts: list[Part]) -> list[Part]:
        """Return `parts` up to the first tool call that exceeds the maximum number of calls.

        If there is such a call, `is_stopped` is set and all later text is discarded.
        """
        for count, part in enumerate(parts) if self._max_calls is not None else ():
            if isinstance(part, ToolCallStart) and self._num_calls == self._max_calls:
                self.is_stopped = True
                self._parser = PlainParser()  # text held by the parser belongs to the call
                return parts[:count]
            self._num_calls += isinstance(part, ToolCallEnd) and part.is_complete
        return parts

    @property
    def has_parts(self) -> bool:
        """Whether the answer may contain reasoning or tool calls; if not, all of it is content."""
        return type(self._parser) is not PlainParser

    @property
    def is_within(self) -> bool:
        """Whether the text so far ends within reasoning or a tool call."""
        return self._parser.is_within

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the answer; None if none has."""
        return None if self._stop is None else self._stop.found

    def scored(self, logprob: TokenLogprob, offset: int) -> ScoredToken:
        """Convert the log probabilities of a token to the form that clients receive, with bytes instead of token ids.

        `offset` is the position in the answer, in characters, at which the token's text begins.
        """
        top = [ScoredToken(self._token_bytes(token), max(score, _IMPOSSIBLE)) for token, score in logprob.top]
        return ScoredToken(self._token_bytes(logprob.token), max(logprob.logprob, _IMPOSSIBLE), tuple(top), offset)

    def _released(self) -> list[ScoredToken]:
        """Return the scored tokens that were held back and whose text begins within the text shown so far.

        They are no longer held back afterwards.
        """
        count = next((i for i, token in enumerate(self._held) if token.offset >= self._shown), len(self._held))
        released, self._held = self._held[:count], self._held[count:]
        return released


_ANYTHING = re.compile(".*", re.DOTALL)


class AnswerParser(PlainParser):
    """Splits the text of one answer into reasoning, content and tool calls while the answer is generated.

    `tool_format` and `reasoning` are the formats in which the model writes tool calls and reasoning; None if it has
    none. `tools` maps the names of the request's functions to the JSON schemas of their arguments.
    `starts_in_reasoning` says that the prompt has already opened the reasoning, and `new_id` returns an id for a new
    call. How the text is cut into pieces does not change the parts.

    Content is returned as soon as it can no longer be the beginning of a call. A call begins with the complete name of
    one of the functions and the beginning of the arguments. Arguments are returned as they arrive or, if the tool
    format requires it, one complete argument at a time. Whitespace before a call, and after a call at the end of the
    answer, belongs to the format and is dropped.

    If a call that has begun continues as other text, or the answer ends inside the call, the call ends incomplete, and
    the text that follows is content. With `only_complete_calls`, a call is returned only when it is complete, and all
    other text is content.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None,
        tools: Mapping[str, Mapping[str, Any] | None],
        *,
        reasoning: ReasoningFormat | None,
        starts_in_reasoning: bool,
        new_id: Callable[[], str],
        only_complete_calls: bool = False,
    ) -> None:
        self._text = Lookahead()
        self._parts: list[Part] = []
        self._format = tool_format if tools else None
        self._new_id = new_id
        self._calls = Calls(tools, new_id, self._emit, only_complete=only_complete_calls)
        self._reasoning = reasoning
        self._starts_in_reasoning = starts_in_reasoning
        self._thought: ReasoningReader | None = None
        self._last: type[Part] = Content  # of the parts so far
        self._reader = self._read()
        # Whether everything before has been returned and the rest is content.
        self._is_plain = False

    @property
    def is_within(self) -> bool:
        thinks = self._thought is not None and self._thought.is_open
        return thinks or self._calls.is_open or (self._reasoning is HARMONY and self._last is Reasoning)

    def feed(self, text: str) -> list[Part]:
        if self._is_plain:
            return super().feed(text)
        self._text.append(text)
        return self._resume()

    def finish(self) -> list[Part]:
        self._text.end()
        return self._resume()

    def _resume(self) -> list[Part]:
        next(self._reader, None)
        parts, self._parts = self._parts, []
        return parts

    def _emit_text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if text:
            self._emit(kind(text))

    def _emit(self, part: Part) -> None:
        """Append a part to the parts that the next `feed` or `finish` returns.

        If the part is of the same kind as the last of these, its text is appended to that part instead.
        """
        self._last = type(part)
        last = self._parts[-1] if self._parts else None
        match last, part:
            case (Content(before), Content(text)):
                self._parts[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                self._parts[-1] = Reasoning(before + text)
            case (ToolCallArguments(index, before), ToolCallArguments(next_index, text)) if index == next_index:
                self._parts[-1] = ToolCallArguments(index, before + text)
            case _:
                self._parts.append(part)

    def _read(self) -> Reader[None]:
        if self._reasoning is HARMONY:
            yield from read_messages(
                self._text,
                self._calls,
                inside=self._starts_in_reasoning,
                read_calls=self._read_calls_here,
                emit=lambda text, is_reasoning: self._emit_text(Reasoning if is_reasoning else Content, text),
            )
            return
        if self._reasoning is not None:
            new_calls = partial(Calls, self._calls.parameters, self._new_id, only_complete=True)
            self._thought = ReasoningReader(self._text, self._reasoning, self._emit, self._format, new_calls)
            yield from self._thought.read(inside=self._starts_in_reasoning)
        yield from self._read_with_calls(self._format) if self._format else self._read_plain()

    def _read_calls_here(self, *, new_line: bool = True) -> Reader[bool]:
        """Read the tool calls at the current position of the text and emit their parts.

        `new_line` says that the position is at the beginning of a line. The result of this generator, which yields
        whenever it needs more text, is True if all text that was read belongs to tool calls, the last of which the end
        of the answer may have cut off. If it is False, the text that was read but not emitted is not a tool call.
        """
        text, calls = self._text, self._calls
        text.kept_from = calls.emitted_to = text.at
        text.met_end = False
        are_calls = self._format is not None and (yield from self._format.read_calls(text, calls, new_line=new_line))
        if calls.is_open and calls.abandon() and text.met_end:
            are_calls = True
            text.take_here(_ANYTHING)  # the answer has ended within the call
        text.kept_from = None
        return are_calls

    def _read_plain(self) -> Reader[None]:
        self._emit_text(Content, self._text.take_here(_ANYTHING))
        self._is_plain = True
        yield

    def _read_with_calls(self, form: ToolFormat) -> Reader[None]:
        text, calls = self._text, self._calls
        plain = re.compile(f"[^{SPACE}{re.escape(form.beginnings)}]+")
        called, new_line = False, True
        while True:
            text.forget()
            space = yield from text.take_space()
            start = calls.emitted_to = text.at
            char = yield from text.peek()
            if not char:
                self._emit_text(Content, "" if called else space)
                return
            new_line = new_line or "\n" in space
            are_calls = char in form.beginnings and (yield from self._read_calls_here(new_line=new_line))
            called = new_line = calls.emitted_to > start
            if are_calls:
                continue
            if text.at == start:  # no call begins here
                text.at += 1
                text.take_here(plain)
            self._emit_text(Content, ("" if called else space) + text.since(calls.emitted_to))
