"""How models mark their reasoning (`ReasoningFormat`), and the reader that separates reasoning from the answer.

Qwen 3, DeepSeek R1 and most other models write `<think>…</think>`, Mistral's models write `[THINK]…[/THINK]`. Some chat
templates write the opening marker into the prompt, so that the answer begins inside the reasoning. gpt-oss writes
messages on channels (the Harmony format): those on the channel `analysis` are reasoning, and other messages may stand
between them (tool_formats/harmony.py). Sources: the chat templates of Qwen3, DeepSeek-R1, Ministral 3 and gpt-oss.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from genai_server.answer_parts import Part, Reasoning, ToolCallEnd
from genai_server.text.answers.parsing import SPACE, Lookahead, Reader
from genai_server.text.grammars.lark import marker, quoted, spelled, text_up_to
from genai_server.text.tool_formats import harmony
from genai_server.text.tool_formats.tool_format import Calls, ToolFormat

_NEWLINES = re.compile(r"\n*")


class ReasoningState(StrEnum):
    """Where an answer begins relative to the model's reasoning, which depends on the end of the prompt.

    BEFORE: the answer may begin with reasoning. INSIDE: the prompt has opened the reasoning. CLOSED: the prompt has
    closed the reasoning, as chat templates do when thinking is off.
    """

    # Before the reasoning, if it has any.
    BEFORE = "before"
    # Within the reasoning: the prompt has opened it.
    INSIDE = "inside"
    # After the reasoning: the prompt has closed it, as chat templates do where thinking is off.
    CLOSED = "closed"


@dataclass(frozen=True)
class ReasoningFormat:
    """The markers that a family of models writes around its reasoning, such as `<think>` and `</think>`.

    `opening` and `closing` are the markers, and `answer_opening` is the text before an answer to the user, "" if there
    is none. Parsers and grammars of answers use the format. `detect_reasoning` chooses the one that a chat template
    uses.
    """

    name: str
    opening: str
    closing: str
    # The text before an answer to the user.
    answer_opening: str = ""

    @property
    def sign(self) -> str:
        """A text by which this format is recognized: it occurs in the chat templates of models that use the format."""
        return self.closing

    @property
    def thoughts_recur(self) -> bool:
        """Whether reasoning may occur several times and anywhere in an answer. If not, it occurs only at the answer's
        beginning.
        """
        return False

    @property
    def opening_pattern(self) -> str:
        """A regular expression for the marker that opens reasoning.

        If the format has reasoning only at the beginning of an answer, the expression matches only there.
        """
        return rf"\A[{SPACE}]*{re.escape(self.opening)}"

    @property
    def closing_pattern(self) -> str:
        """A regular expression for the marker that closes reasoning, anywhere in an answer."""
        return re.escape(self.closing)

    def end(self, written: str) -> str:
        """Return the text that the server inserts into an answer to close its reasoning, for example at a limit of its
        tokens.

        `written` is the text that the model's chat template writes between reasoning and answer; "" if it is unknown,
        in which case a usual text is returned.
        """
        before, marker, after = written.partition(self.closing)
        is_known = marker and not (before + after).strip("\n")
        # The grammars of answers allow at most two line breaks.
        return f"{before}{marker}{after[:2]}" if is_known else f"\n{self.closing}\n\n"

    def later_end(self, written: str) -> str:
        """Return the text that the server inserts to close reasoning that the model opened again after the server
        closed it once.

        `written` is the text that the model's chat template writes between reasoning and answer; "" if it is unknown.
        """
        return self.end(written)

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """The texts of the special tokens that the decoder must keep in the answer's text, because the parser needs
        them.
        """
        return (self.opening, self.closing)

    def state_after(self, prompt: str) -> ReasoningState:
        """Return where an answer begins that follows the rendered prompt `prompt`.

        The answer begins inside reasoning if the prompt ends with the opening marker, after reasoning if the prompt
        ends with the closing marker, and otherwise before any reasoning.
        """
        end = prompt.rstrip(SPACE)
        if end.endswith(self.opening):
            return ReasoningState.INSIDE
        return ReasoningState.CLOSED if end.endswith(self.closing) else ReasoningState.BEFORE

    def state_within(self, message: str) -> ReasoningState:
        """Return where an answer begins that continues the assistant message `message`: inside or after reasoning.

        It is inside if the message has an opening marker without a later closing marker.
        """
        opened, closed = (message.rfind(marker) for marker in (self.opening, self.closing))
        return ReasoningState.INSIDE if opened > closed else ReasoningState.CLOSED

    def lark(self, *, inside: bool, opaque_tokens: Mapping[str, int]) -> str:
        """Return rules of a grammar, in llguidance's dialect of Lark, whose first rule `reasoning` matches reasoning.

        With `inside`, the rule matches the rest of reasoning that the prompt has opened, otherwise optional reasoning
        with both markers. `opaque_tokens` maps the texts of special tokens, which no literal of a grammar matches, to
        token ids.
        """
        rules = self.lark_rest(opaque_tokens)
        if inside:
            return f"reasoning: rest_of_reasoning\n{rules}"
        return f"reasoning: ({marker(self.opening, opaque_tokens)} rest_of_reasoning)?\n{rules}"

    def lark_rest(self, opaque_tokens: Mapping[str, int]) -> str:
        """Return rules of a grammar, in llguidance's dialect of Lark, whose first rule `rest_of_reasoning` matches the
        reasoning after its opening marker, up to and including the closing marker.

        `opaque_tokens` maps the texts of special tokens, which no literal of a grammar matches, to token ids.
        """
        if self.closing in opaque_tokens:
            thought = f"thought: /(.|\\n)*/ {marker(self.closing, opaque_tokens)}"
        else:
            thought = f"thought[suffix={quoted(self.closing)}]: /(.|\\n)*/"
        return f'rest_of_reasoning: thought ("\\n" | "\\n\\n")?\n{thought}\n'


class HarmonyReasoning(ReasoningFormat):
    """The reasoning format of gpt-oss, whose reasoning consists of Harmony messages on the channel `analysis`."""

    @property
    def sign(self) -> str:
        return self.opening

    @property
    def thoughts_recur(self) -> bool:
        return True

    @property
    def opening_pattern(self) -> str:
        channel, constrain, message = map(re.escape, (harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE))
        return rf"{channel}\s*analysis\b[^<]*({constrain}[^<]*)?{message}"

    @property
    def closing_pattern(self) -> str:
        # The next message may begin without an end of this one, and its header is then still to be read.
        ends, starts = (
            "|".join(map(re.escape, markers)) for markers in (harmony.ENDS, (harmony.START, harmony.CHANNEL))
        )
        return f"{ends}|(?={starts})"

    def end(self, written: str) -> str:
        # The model chooses the channel of the next message, and so whether it calls a tool.
        return harmony.NEXT_MESSAGE

    def later_end(self, written: str) -> str:
        return f"{harmony.NEXT_MESSAGE}{harmony.FINAL}"

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        return harmony.MARKERS

    def state_after(self, prompt: str) -> ReasoningState:
        # The end of any message is the marker that closes reasoning.
        state = super().state_after(prompt)
        return ReasoningState.BEFORE if state is ReasoningState.CLOSED else state

    def lark(self, *, inside: bool, opaque_tokens: Mapping[str, int]) -> str:
        thought = text_up_to("thought", harmony.NEXT_MESSAGE, opaque_tokens, without=harmony.MARKERS)
        more = f"({spelled(self.opening, opaque_tokens)} thought)*"
        return f"reasoning: {f'thought {more}' if inside else more}\n{thought}"


THINK = ReasoningFormat("think", "<think>", "</think>")
MISTRAL_THINK = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
HARMONY = HarmonyReasoning(
    "harmony", f"{harmony.CHANNEL}analysis{harmony.MESSAGE}", harmony.END, answer_opening=harmony.FINAL
)
REASONING_FORMATS = {one.name: one for one in (THINK, MISTRAL_THINK, HARMONY)}


def detect_reasoning(template_source: str) -> ReasoningFormat | None:
    """Return the reasoning format that a chat template uses; None if its source `template_source` shows none."""
    return next((form for form in REASONING_FORMATS.values() if form.sign in template_source), None)


class ReasoningReader:
    """Reads the reasoning at the beginning of one answer, if there is any, and emits it as parts. AnswerParser creates
    it for all formats but Harmony, which has reasoning anywhere.

    Newlines around reasoning belong to the format. They are neither reasoning nor content, and are emitted only if the
    answer ends within the reasoning. If the answer begins inside reasoning and repeats the opening marker, the marker
    is dropped.

    A model may forget to close its reasoning and call tools from within it. So if the reasoning is never closed,
    complete calls that begin a line count as tool calls. From the first such call on, all parts are held back until the
    reasoning is closed or the answer ends. The attribute `is_open` says that the reasoning has begun and is not closed.
    """

    def __init__(
        self,
        text: Lookahead,
        form: ReasoningFormat,
        emit: Callable[[Part], None],
        tool_format: ToolFormat | None,
        new_calls: Callable[[Callable[[Part], None]], Calls],
    ) -> None:
        # Whether a thought has begun that is not closed.
        self.is_open = False
        self._text = text
        self._form = form
        self._emit = emit
        self._tool_format = tool_format
        # Parts for the text from `_held_from` on, if the reasoning is never closed.
        self._held: list[Part] = []
        self._held_from: int | None = None
        self._calls = new_calls(self._held.append)
        # No call begins before the first position, and the closing marker not before the second one.
        self._no_call_before = self._unclosed_to = 0

    def read(self, *, inside: bool) -> Reader[None]:
        """Read the reasoning of the answer and emit its parts. `inside` says that the prompt has already opened the
        reasoning.

        This generator yields whenever it needs more text. If there is no reasoning, it consumes nothing.
        """
        text, closing = self._text, self._form.closing
        start = text.at
        yield from text.skip_space()
        if not (yield from text.take(self._form.opening)):
            text.at = start
            if not inside:
                return
        self.is_open = True
        yield from text.take_all(_NEWLINES)
        beginnings = "" if self._tool_format is None else self._tool_format.beginnings
        plain = re.compile(rf"[^\n{re.escape(closing[0] + beginnings)}]+")
        is_blank = True  # the line so far
        while True:
            text.forget()
            newlines = yield from text.take_all(_NEWLINES)
            is_blank = is_blank or newlines != ""
            char = yield from text.peek()
            if not char:
                self._end(newlines)
                return
            if (yield from text.take(closing)):
                self._close(text.at - len(newlines + closing))
                self.is_open = False
                yield from text.take_all(_NEWLINES)
                return
            if is_blank and char in beginnings and (yield from self._read_calls(text.at - len(newlines))):
                continue
            if not (thought := text.take_here(plain)):
                thought = char
                text.at += 1
            is_blank = is_blank and not thought.strip(SPACE)
            self._add(newlines + thought)

    def _read_calls(self, line: int) -> Reader[bool]:
        """Read complete tool calls at the current position. `line` is the position of the newlines before the calls.

        Result of this generator: whether there was at least one call. If not, nothing is consumed.
        """
        text, calls, start = self._text, self._calls, self._text.at
        if start < self._no_call_before or self._tool_format is None:
            return False
        text.kept_from = line if self._held_from is None else self._held_from
        calls.emitted_to = start
        reader = self._tool_format.read_calls(text, calls, new_line=True)
        are_calls: bool | None = None
        while (closed := text.find(self._form.closing, max(start, self._unclosed_to))) is None:
            self._unclosed_to = text.received_to - len(self._form.closing) + 1
            try:
                next(reader)
            except StopIteration as end:
                are_calls = end.value
                break
            yield
        if calls.is_open:
            calls.abandon()
        if closed is not None or calls.emitted_to == start:
            self._no_call_before = text.at if closed is None else closed
            text.at, text.kept_from = start, self._held_from
            return False
        self._held_from = text.kept_from
        if not are_calls:
            text.at = calls.emitted_to
        return True

    def _add(self, thought: str) -> None:
        if self._held_from is None:
            self._emit(Reasoning(thought))
        else:
            self._held.append(Reasoning(thought))

    def _close(self, end: int) -> None:
        """Handle the closing marker of the reasoning. All text that was held back turns out to be reasoning, also what
        looked like tool calls in it; it is emitted up to the position `end`.
        """
        if self._held_from is not None:
            self._emit(Reasoning(self._text.between(self._held_from, end)))
            self._text.kept_from = None

    def _end(self, newlines: str) -> None:
        """Handle an answer that ends within its reasoning: emit all parts that were held back, including tool calls.

        `newlines` are the line breaks at the end of the answer. They are emitted as reasoning, unless they follow a
        tool call.
        """
        if newlines and not (self._held and isinstance(self._held[-1], ToolCallEnd)):
            self._add(newlines)
        for part in self._held:
            self._emit(part)
