"""The traits of a chat template: which parts of a conversation it writes, and in which forms it needs them.

template_probe.py finds the traits of a template (`TemplateTraits`), and conversation.py converts conversations
accordingly. `ThinkingVariables` has the variables that control reasoning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

# The efforts of the APIs, in order.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Names under which clients send the variable that turns reasoning on and off.
THINKING_NAMES = ("enable_thinking", "thinking")


class CallForm(StrEnum):
    """The form in which the tool calls of a conversation are passed to a template.

    TOGETHER: all calls of a message at once. ONE_BY_ONE: a message for each call, followed by its results. IN_CONTENT:
    in the content, as the model writes calls in answers, for templates that cannot write calls. TEXT: as plain text of
    the assistant, for templates of models that have no calls.
    """

    TOGETHER = "together"
    # A message for each call, followed by its results.
    ONE_BY_ONE = "one by one"
    # In the content, as the model writes them in answers, for templates that cannot write them.
    IN_CONTENT = "in content"
    # As text of the assistant, for templates that have no calls.
    TEXT = "text"


class TextBesideCalls(StrEnum):
    """What a template does with an assistant's text in a message that also has tool calls.

    WRITTEN: it writes the text. BEFORE: it writes the text only as a message of its own, before the calls. LOST: it
    drops the text.
    """

    WRITTEN = "written"
    # It is a message of its own, before the calls.
    BEFORE = "before"
    LOST = "lost"


class CallIds(StrEnum):
    """The form that the ids of tool calls must have for a template.

    ANY: any text. NINE_CHARACTERS: nine letters and digits. NAMED: the function's name with a counter, as in
    `functions.NAME:0`, because the template writes the name nowhere else.
    """

    ANY = "any"
    # Nine letters and digits.
    NINE_CHARACTERS = "nine"
    # With the function's name and a counter, as in `functions.NAME:0`; the template writes the name nowhere else.
    NAMED = "named"


class ToolsPosition(StrEnum):
    """Where a template reads the tools of a request.

    VARIABLE: in the variable `tools`. LIST_IN_MESSAGE and JSON_IN_MESSAGE: in the field `tools` of a system message, as
    a list or as JSON text.
    """

    VARIABLE = "variable"
    # In the field `tools` of a system message, as a list or as JSON.
    LIST_IN_MESSAGE = "list in message"
    JSON_IN_MESSAGE = "JSON in message"


class ChosenEffort(NamedTuple):
    """The variables of a template for the reasoning effort of a request (`values`), and the effort that they set.

    `effort` is None if the variables only switch reasoning on or off.
    """

    values: Mapping[str, Any]
    effort: str | None


@dataclass(frozen=True)
class ThinkingVariables:
    """The variables of a chat template that set whether the model reasons, and with which effort.

    `switch_on` and `switch_off` are the variable that turns reasoning on and off, with the value for each; empty if
    there is none. `effort` is the name of the variable for the effort ("" if there is none), and `efforts` maps the
    efforts that the template accepts to values of this variable.
    """

    # The variable that turns reasoning on and off, with a value for each; empty without one.
    switch_on: Mapping[str, Any] = field(default_factory=dict)
    switch_off: Mapping[str, Any] = field(default_factory=dict)
    # The variable for the effort, "" without one, and its values, keyed by effort, for those that the template takes.
    effort: str = ""
    efforts: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The names of all variables that control reasoning: those of the template, and those by which clients turn
        reasoning on or off.
        """
        return frozenset({*self.switch_on, self.effort, *THINKING_NAMES})

    def variables(self, effort: str) -> ChosenEffort | None:
        """Return the template variables for the reasoning effort `effort`, such as "low", or the nearest effort that
        the template supports.

        None if no effort changes the prompt.
        """
        if effort == "none" and self.switch_off:
            return ChosenEffort(self.switch_off, None)
        # Only "none" turns reasoning off.
        supported = [level for level in self.efforts if level != "none" or effort == "none"]
        if not supported:
            return ChosenEffort(self.switch_on, None) if self.switch_on and effort != "none" else None
        rank = EFFORTS.index(effort)
        # Of two that are equally near the greater one.
        nearest = min(supported, key=lambda level: (abs(EFFORTS.index(level) - rank), -EFFORTS.index(level)))
        return ChosenEffort({**self.switch_on, self.effort: self.efforts[nearest]}, nearest)


@dataclass(frozen=True)
class TemplateTraits:
    """Which parts of a conversation a chat template writes, and in which form it needs them.

    `probe` determines the traits of a template, and `convert` uses them. The defaults describe a template that writes
    everything in its original place and form. If `is_known` is false, the probe could not find the traits out.
    """

    # Whether the probe has found out. If not, conversations are rendered as they are.
    is_known: bool = False
    # Whether instructions at the beginning are written: a message with role system or developer.
    leading_instructions: bool = True
    # Whether role developer is known there, and next to system.
    leading_developer: bool = False
    separate_developer: bool = False
    # Whether they are also written if the conversation ends with a tool's result, and if there is nothing else.
    instructions_before_results: bool = True
    instructions_alone: bool = True
    # Whether instructions are written in place further on.
    later_instructions: bool = True
    # Neighbours and beginnings that are written.
    user_after_user: bool = True
    assistant_after_assistant: bool = True
    user_after_tool: bool = True
    assistant_first: bool = True
    empty_assistant: bool = True
    # Tool calls.
    tools_position: ToolsPosition = ToolsPosition.VARIABLE
    calls: CallForm = CallForm.TOGETHER
    call_ids: CallIds = CallIds.ANY
    # The content next to calls if there is none.
    empty_content: str | None = None
    # Whether arguments are JSON, not objects.
    arguments_as_json: bool = False
    # Whether arguments that are no JSON object are written as the text that they are.
    broken_arguments: bool = False
    text_beside_calls: TextBesideCalls = TextBesideCalls.WRITTEN
    # Whether calls without a result, and results without a call, are written.
    open_calls: bool = True
    orphan_results: bool = True
    # Whether results are messages of role tool, and may contain images or audio clips.
    tool_results: bool = True
    media_in_results: bool = True
    # The field in which reasoning is read; "" if it is never written. Whether it may stand next to text and calls.
    reasoning_field: str = "reasoning_content"
    reasoning_beside_text: bool = True
    # What is written between reasoning and the text after it; "" if that is unknown.
    reasoning_end: str = ""
    # Whether names of speakers are written.
    names: bool = True
    thinking: ThinkingVariables = ThinkingVariables()

    def in_words(self) -> Iterator[str]:
        """Yield sentences for the operator: one for each part of a conversation that prompts have in another form than
        the request.
        """
        if not self.is_known:
            yield "the chat template renders no simple conversation, so conversations are not adapted to it"
            return
        for is_said, words in (
            (not self.leading_instructions, "system messages: written as text of the first user message"),
            (
                self.leading_instructions and not self.later_instructions,
                "system messages later in a conversation: written as text of the user",
            ),
            (not self.user_after_user, "messages of one role in a row: joined"),
            (not self.user_after_tool, "text of the user after a tool's result: written at the result's end"),
            (not self.assistant_first, "an assistant's message at the beginning: a message of the user is added"),
            (self.calls is CallForm.TEXT, "tool calls and results in the history: written as text"),
            (self.calls is CallForm.ONE_BY_ONE, "parallel tool calls in the history: written one by one"),
            (
                self.text_beside_calls is TextBesideCalls.BEFORE,
                "text next to tool calls: written as a message of its own",
            ),
            (self.text_beside_calls is TextBesideCalls.LOST, "text next to tool calls: left out"),
            (not self.open_calls, "tool calls without a result: get one"),
            (not self.reasoning_field, "reasoning of earlier answers: left out"),
        ):
            if is_said:
                yield words
        if (efforts := self.thinking.efforts) and set(efforts) != set(EFFORTS):
            yield f"reasoning efforts: {', '.join(efforts)}; others become the nearest one"


# What every template writes that has turns of user and assistant: nothing but their texts, by turns.
TEXTS_BY_TURNS: Mapping[str, Any] = {
    "later_instructions": False,
    "user_after_user": False,
    "assistant_after_assistant": False,
    "user_after_tool": False,
    "assistant_first": False,
    "empty_assistant": False,
    "calls": CallForm.TEXT,
    "open_calls": False,
    "orphan_results": False,
    "tool_results": False,
}
