"""The markers of reasoning before an answer, and how it is separated from the answer.

Qwen 3, DeepSeek R1 and most others write `<think>…</think>`, Mistral's models `[THINK]…[/THINK]`; the chat templates of
some open it themselves, so that the answer begins inside. gpt-oss writes messages on channels, of which `analysis` is
reasoning; others may stand between (tool_formats/harmony.py). (Chat templates of Qwen3, DeepSeek-R1, Ministral 3 and
gpt-oss.)
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from genai_server.text.answers.lookahead import SPACE, Lookahead, Reader
from genai_server.text.grammars.lark import marker, quoted, spelled, text_up_to
from genai_server.text.tool_formats import harmony

_NEWLINES = re.compile(r"\n*")


@dataclass(frozen=True)
class ReasoningFormat:
    """The markers around a model's reasoning."""

    name: str
    opening: str
    closing: str
    # The text before an answer to the user.
    answer_opening: str = ""

    @property
    def sign(self) -> str:
        """A text that occurs in chat templates of models with this format."""
        return self.closing

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """Special tokens that the decoder must show."""
        return (self.opening, self.closing)

    def begins_inside(self, prompt: str) -> bool:
        """Whether the rendered prompt ends with the opening marker, so that the answer begins as reasoning."""
        return prompt.rstrip(SPACE).endswith(self.opening)

    def lark(self, *, inside: bool, opaque_tokens: Mapping[str, int]) -> str:
        """llguidance Lark rules with `reasoning` on top: its rest if `inside`, else optional reasoning."""
        if self.closing in opaque_tokens:
            thought = f"thought: /(.|\\n)*/ {marker(self.closing, opaque_tokens)}\n"
        else:
            thought = f"thought[suffix={quoted(self.closing)}]: /(.|\\n)*/\n"
        newlines = '("\\n" | "\\n\\n")?'
        if inside:
            return f"reasoning: thought {newlines}\n{thought}"
        return f"reasoning: ({marker(self.opening, opaque_tokens)} thought {newlines})?\n{thought}"


class HarmonyReasoning(ReasoningFormat):
    """Harmony messages on the channel `analysis`."""

    @property
    def sign(self) -> str:
        return self.opening

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        return harmony.MARKERS

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
    """The reasoning format that a chat template uses, or None."""
    return next((one for one in REASONING_FORMATS.values() if one.sign in template_source), None)


def read_reasoning(
    text: Lookahead, form: ReasoningFormat, *, inside: bool, emit: Callable[[str], None]
) -> Reader[None]:
    """Read the reasoning at the beginning of an answer, if any.

    The newlines around it belong to the format, and are neither reasoning nor answer. They are emitted only for
    reasoning that is cut. If the answer begins `inside`, an opening marker that it repeats is dropped.
    """
    place = text.at
    yield from text.skip_space()
    if not (yield from text.take(form.opening)):
        text.at = place
        if not inside:
            return
    yield from text.take_all(_NEWLINES)
    plain = re.compile(rf"[^\n{re.escape(form.closing[0])}]+")
    while True:
        text.forget()
        newlines = yield from text.take_all(_NEWLINES)
        if not (yield from text.peek()):
            emit(newlines)
            return
        if (yield from text.take(form.closing)):
            yield from text.take_all(_NEWLINES)
            return
        if not (thought := text.take_here(plain)):
            thought = yield from text.peek()
            text.at += 1
        emit(newlines + thought)
