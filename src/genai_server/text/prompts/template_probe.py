"""Finds out what a chat template writes, drops and refuses (`probe`), by rendering short conversations of marker words.

Each of the template's traits (template_traits.py) has several possible values, which are tried in order: from the form
of messages that changes a conversation least to the form that every template writes. The probe takes the first value
with which the template writes all markers (in order, where the order matters). Test conversations are converted with
the value by conversation.py, like the conversations of requests.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.prompts.chat_template import ChatTemplate, TemplateRendering
from genai_server.text.prompts.conversation import MEDIA, REASONING, convert
from genai_server.text.prompts.special_tokens import SpecialTokenGuard
from genai_server.text.prompts.template_traits import (
    EFFORTS,
    CallForm,
    CallIds,
    TemplateTraits,
    TextBesideCalls,
    ThinkingVariables,
    ToolsPosition,
)
from genai_server.text.tool_formats.tool_format import ToolFormat

Message = dict[str, Any]
Option = Mapping[str, Any]
# Messages, and the markers that their prompt must have.
Case = tuple[Sequence[Message], Sequence[str]]

# Processor time of one probe. Real templates take about 20 ms; one that takes longer is rendered unchanged.
_MAX_SECONDS = 2.0
# Probes kept, because a model is loaded for several devices and more than once.
_MAX_KEPT = 64
_FUNCTION = "probe_lookup"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _FUNCTION,
            "description": "Looks a key up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
]
# What a content or object that is null becomes in a text.
_NULL = re.compile("None|null")
_REASONING_FIELDS = (REASONING, "reasoning", "thinking", "thought")
# Variables that turn reasoning on and off, with their values, and those for the effort.
_SWITCHES: Mapping[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning": (True, False),
    "thinking_mode": ("enabled", "disabled"),
    "thinking_budget": (-1, 0),
}
_EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
# Other names of efforts in templates.
_OTHER_NAMES = {"none": ("none", "no_think")}


@lru_cache(_MAX_KEPT)
def probe(
    template: ChatTemplate, tool_format: ToolFormat | None, image_marker: str, *, with_tools: bool
) -> TemplateTraits:
    """Return the traits of a chat template: what it writes of conversations, with or without tools, and in which forms.

    `tool_format` is the format for calls that the template cannot write itself, and `image_marker` is the text for an
    image that it cannot write. A probe takes about 20 ms, and the results of the last probes are cached. If rendering
    takes too long, the traits are those of a template about which nothing is known.
    """
    return _Probe(template, tool_format, image_marker, with_tools=with_tools).traits()


class _TooLong(Exception):
    """Error: rendering with a template takes so long that its probe stops."""


class _Probe:
    """Determines the TemplateTraits of one chat template, by rendering test conversations. The function `probe` creates
    it.
    """

    def __init__(
        self, template: ChatTemplate, tool_format: ToolFormat | None, image_marker: str, *, with_tools: bool
    ) -> None:
        self._template = template
        self._rendering = TemplateRendering(template, SpecialTokenGuard(()), tool_format, image_marker)
        self._image_marker = image_marker
        self._tools = TOOLS if with_tools else []
        self._tool_format = tool_format
        self._supports_calls = "tool_calls" in template.source
        is_in_content = tool_format is not None and not self._supports_calls
        # What is known without rendering: the template itself writes calls only if it reads them.
        self._initial = TemplateTraits(calls=CallForm.IN_CONTENT if is_in_content else CallForm.TOGETHER)
        self._traits = self._initial
        self._end = time.thread_time() + _MAX_SECONDS

    def traits(self) -> TemplateTraits:
        """Find out all traits of the template and return them; if rendering takes too long, return those that need no
        rendering.
        """
        try:
            self._place_tools()
            simple = ([_user("useran")], [_system(), _user("useran")])
            if not any(self._writes(messages, "useran") for messages in simple):
                return replace(self._traits, thinking=self._thinking())
            self._instructions()
            self._neighbours()
            self._calls()
            self._results()
            self._neighbours_of_results()
            self._traits = replace(self._traits, thinking=self._thinking())
            self._reasoning()
            return replace(self._traits, is_known=True)
        except _TooLong:
            return self._initial

    def _place_tools(self) -> None:
        if self._tools and "tools" not in self._template.variables:
            positions: list[Option] = [
                {"tools_position": position}
                for position in (ToolsPosition.LIST_IN_MESSAGE, ToolsPosition.JSON_IN_MESSAGE)
            ]
            self._choose(positions, ([_user("useran")], [_FUNCTION]))

    def _instructions(self) -> None:
        system, user = _system(), _user("useran")
        self._decide("leading_instructions", ([system, user], ["systeman", "useran"]), is_ordered=False)
        self._decide("instructions_alone", ([system], ["systeman"]))
        if "developer" in self._template.source:
            developer = {"role": "developer", "content": "developeran"}
            self._decide("leading_developer", ([developer, user], ["developeran", "useran"]), is_ordered=False)
            if self._traits.leading_developer:
                markers = ["systeman", "developeran", "useran"]
                self._decide("separate_developer", ([system, developer, user], markers))

    def _neighbours(self) -> None:
        user_a, user_b, user_c = (_user(f"user{end}") for end in ("an", "be", "ce"))
        first, second = _assistant("assistantan"), _assistant("assistantbe")
        self._decide(
            "user_after_user",
            ([user_a, user_b, first, user_c], ["useran", "userbe", "assistantan", "userce"]),
            ([_system(), user_a, user_b], ["useran", "userbe"]),
        )
        self._decide(
            "assistant_after_assistant",
            ([user_a, first, second, user_b], ["useran", "assistantan", "assistantbe", "userbe"]),
        )
        self._decide(
            "assistant_first",
            ([first, user_a], ["assistantan", "useran"]),
            ([_system(), first, user_a, second, user_b], ["assistantan", "useran", "assistantbe", "userbe"]),
        )
        self._decide(
            "empty_assistant", ([user_a, _assistant(""), user_b, second, user_c], ["useran", "userbe", "assistantbe"])
        )

    def _calls(self) -> None:
        """Find out in which form the template writes tool calls and their results, and set the traits for it."""
        user, call, result = _user("useran"), _assistant(None, "valuean"), _result("resultan", "valuean")
        more = [_assistant("assistantbe"), _user("userbe")]
        markers = ["useran", _FUNCTION, "valuean", "resultan"]
        as_text: Option = {"calls": CallForm.TEXT, "tool_results": False}
        self._choose(
            [*self._call_options(), as_text],
            ([user, call, result], markers),
            ([user, call, result, *more], [*markers, "assistantbe", "userbe"]),
        )
        form = self._traits.calls
        if form is CallForm.TEXT:
            return
        # Some templates write the word None.
        if self._num_nulls([user, call, result], None) > self._num_nulls([user, call, result], ""):
            self._choose([{"empty_content": ""}, {}], ([user, call, result], markers))
        both = _assistant(None, "valuean", "valuebe")
        results = [_result("resultan", "valuean"), _result("resultbe", "valuebe")]
        markers = ["useran", "valuean", "valuebe", "resultan", "resultbe"]
        self._choose(
            [{}, {"calls": CallForm.ONE_BY_ONE if form is CallForm.TOGETHER else form}, as_text],
            ([user, both, *results], markers),
            ([user, both, *results, *more], [*markers, "assistantbe", "userbe"]),
            is_ordered=False,
        )
        broken = _assistant(None)
        broken["tool_calls"] = [_call("valuean", arguments='{"key": "broken')]
        if form is CallForm.TOGETHER:
            self._decide("broken_arguments", ([user, broken, result], ["useran", "broken", "resultan"]))

    def _call_options(self) -> list[Option]:
        """Return the forms of a tool call and its result, in the order in which the probe tries them.

        Plain text for both, the last resort, is not among them.
        """
        options: list[Option] = []
        for tool_results in (True, False):
            if self._supports_calls:
                for ids, content, as_json in product(CallIds, (None, ""), (False, True)):
                    fields = {"call_ids": ids, "empty_content": content, "arguments_as_json": as_json}
                    options.append({"tool_results": tool_results, **fields})
            if self._tool_format is not None:
                options.append({"tool_results": tool_results, "calls": CallForm.IN_CONTENT})
        if "tool" in self._template.constants:  # a role that the model knows
            options.append({"calls": CallForm.TEXT})
        return options

    def _results(self) -> None:
        """Find out what the template writes around tool calls and results, and set the traits for it.

        This concerns texts next to calls, images in results, and instructions before them.
        """
        user, call, result = _user("useran"), _assistant(None, "valuean"), _result("resultan", "valuean")
        if self._traits.leading_instructions:
            self._decide(
                "instructions_before_results",
                ([_system(), user, call, result], ["systeman", "useran", "resultan"]),
                is_ordered=False,
            )
        call_with_text, second_call = _assistant("textan", "valuean"), _assistant("textbe", "valuebe")
        markers = ["useran", "textan", "valuean", "resultan"]
        self._choose(
            [{"text_beside_calls": form} for form in TextBesideCalls],
            ([user, call_with_text, result], markers),
            (
                [user, call_with_text, result, _assistant("assistantbe"), _user("userbe")],
                [*markers, "assistantbe", "userbe"],
            ),
            (
                [user, call_with_text, result, second_call, _result("resultbe", "valuebe")],
                [*markers, "textbe", "valuebe", "resultbe"],
            ),
            is_ordered=False,
        )
        if self._image_marker:
            medium = self._medium()
            result_with_medium = {**result, "content": [medium, {"type": "text", "text": "resultan"}]}
            is_written = self._writes(
                [user, call, result_with_medium], "useran", self._image_marker, "resultan", is_ordered=False
            )
            self._traits = replace(self._traits, media_in_results=is_written)

    def _medium(self) -> Message:
        """Return the part of a test message that stands for an image, or for an audio clip if the template supports
        only audio.
        """
        media = [medium for medium, names in MEDIA.items() if self._template.constants & set(names)]
        return {"type": media[0] if media else "image"}

    def _neighbours_of_results(self) -> None:
        user_a, user_b = _user("useran"), _user("userbe")
        call, result = _assistant(None, "valuean"), _result("resultan", "valuean")
        again, other = _assistant(None, "valuebe"), _result("resultbe", "valuebe")
        end = [_assistant("assistantbe"), _user("userce")]
        self._decide(
            "user_after_tool",
            ([user_a, call, result, user_b], ["useran", "resultan", "userbe"]),
            (
                [user_a, call, result, user_b, again, other, *end],
                ["useran", "resultan", "userbe", "resultbe", "userce"],
            ),
        )
        self._decide(
            "open_calls",
            ([user_a, call, user_b], ["useran", "valuean", "userbe"]),
            ([user_a, call, *end], ["useran", "valuean", "assistantbe", "userce"]),
        )
        self._decide(
            "orphan_results",
            ([user_a, result], ["useran", "resultan"]),
            ([user_a, _assistant("assistantan"), result, *end], ["useran", "assistantan", "resultan", "assistantbe"]),
        )
        first = _assistant("assistantan")
        roles = ("system", "developer") if self._traits.leading_developer else ("system",)
        cases: list[Case] = []
        for later in ({"role": role, "content": "laterbe"} for role in roles):
            cases += [
                ([_system(), user_a, first, later, user_b], ["useran", "assistantan", "laterbe", "userbe"]),
                ([user_a, first, user_b, later], ["useran", "assistantan", "userbe", "laterbe"]),
                ([user_a, later, first, user_b], ["useran", "laterbe", "assistantan", "userbe"]),
                ([user_a, call, result, later], ["useran", "resultan", "laterbe"]),
            ]
        self._decide("later_instructions", *cases)
        named = {**user_a, "name": "namean"}
        self._decide("names", ([named], ["namean", "useran"]), is_ordered=False)

    def _reasoning(self) -> None:
        """Find out in which message field the template reads the reasoning of an assistant message, and which text it
        writes after the reasoning. Sets the traits for it.

        Some templates write reasoning only while reasoning is turned on, so both cases are tried.
        """
        user_a, user_b = _user("useran"), _user("userbe")
        result = _result("resultan", "valuean")
        called = {**_assistant(None, "valuean"), REASONING: "thoughtan"}
        answer = {**_assistant("assistantan"), REASONING: "thoughtan"}
        is_on = self._traits.thinking.switch_on
        names = self._template.fields | self._template.constants
        fields = [field for field in _REASONING_FIELDS if field in names]
        for field in fields:
            self._traits = replace(self._traits, reasoning_field=field)
            cases = ([user_a, called, result], [user_a, answer, user_b], [user_a, answer])
            if any(
                self._writes(messages, "thoughtan", variables=variables)
                for messages in cases
                for variables in ({}, is_on)
            ):
                break
        else:
            self._traits = replace(self._traits, reasoning_field=fields[0] if fields else "")
        texts = (
            self._rendered(messages, variables) or ""
            for messages in ([user_a, answer], [user_a, answer, user_b])
            for variables in ({}, is_on)
        )
        ends = (re.search("thoughtan(.*?)assistantan", text, re.DOTALL) for text in texts)
        self._traits = replace(self._traits, reasoning_end=next((end[1] for end in ends if end is not None), ""))
        both = {**_assistant("textan", "valuean"), REASONING: "thoughtan"}
        markers = ["useran", "valuean", "resultan"]
        if self._traits.text_beside_calls is not TextBesideCalls.LOST:
            markers.append("textan")
        if self._writes([user_a, called, result], "thoughtan", variables=is_on):
            markers.append("thoughtan")
        is_written = self._writes([user_a, both, result], *markers, is_ordered=False, variables=is_on)
        self._traits = replace(self._traits, reasoning_beside_text=is_written)

    def _thinking(self) -> ThinkingVariables:
        variables = ThinkingVariables()
        for name, (on, off) in _SWITCHES.items():
            if name in self._template.variables:
                texts = [self._rendered([_user("useran")], {name: value}) for value in (on, off)]
                if None not in texts and texts[0] != texts[1]:
                    variables = ThinkingVariables({name: on}, {name: off})
                    break
        for name in _EFFORT_VARIABLES:
            if name in self._template.variables:
                efforts = {effort: self._effort(name, effort) for effort in EFFORTS}
                return replace(
                    variables, effort=name, efforts={level: value for level, value in efforts.items() if value}
                )
        return variables

    def _effort(self, variable: str, effort: str) -> str | None:
        """Return the value to which the template's variable `variable` must be set for the reasoning effort `effort`,
        such as "low".

        None if the template refuses the effort.
        """
        names = _OTHER_NAMES.get(effort, (effort,))
        return next((name for name in names if self._rendered([_user("useran")], {variable: name}) is not None), None)

    def _decide(self, trait: str, *cases: Case, is_ordered: bool = True) -> None:
        """Set the boolean trait `trait` to true if the template then writes the markers of all cases, and otherwise to
        false.

        A case is a conversation, and the marker words that its prompt must contain, in the given order if `is_ordered`.
        """
        self._choose([{trait: True}, {trait: False}], *cases, is_ordered=is_ordered)

    def _choose(
        self,
        options: Sequence[Option],
        *cases: Case,
        is_ordered: bool = True,
    ) -> None:
        """Set traits to the first option with which the template writes the markers of all cases; if none does, to the
        last option.

        An option maps traits to values. A case is a conversation, and the marker words that its prompt must contain, in
        the given order if `is_ordered`.
        """
        for option in options:
            before, self._traits = self._traits, replace(self._traits, **option)
            if option is options[-1] or all(
                self._writes(messages, *markers, is_ordered=is_ordered) for messages, markers in cases
            ):
                return
            self._traits = before

    def _num_nulls(self, messages: Sequence[Message], empty_content: str | None) -> int:
        before, self._traits = self._traits, replace(self._traits, empty_content=empty_content)
        text = self._rendered(messages, {}) or ""
        self._traits = before
        return len(_NULL.findall(text))

    def _writes(
        self,
        messages: Sequence[Message],
        *markers: str,
        is_ordered: bool = True,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> bool:
        """Whether the template, with the traits so far, writes all marker words `markers` for a conversation.

        They must occur in the given order if `is_ordered`. `variables` are additional variables of the template.
        """
        text = self._rendered(messages, variables)
        if text is None:
            return False
        return _are_in(text, markers) if is_ordered else all(marker in text for marker in markers)

    def _rendered(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str | None:
        """Return the prompt that the template renders for a conversation, with the traits so far; None if it refuses
        the messages.

        `variables` are additional variables of the template. Raises _TooLong when the probe has taken two seconds in
        all.
        """
        if time.thread_time() > self._end:
            raise _TooLong
        converted = convert(messages, self._traits).messages
        template_variables = {
            "documents": None,
            "tools": self._tools or None,
            "add_generation_prompt": True,
            **variables,
        }
        try:
            return self._rendering.render(converted, self._tools, template_variables, self._traits).text
        except InvalidField:
            return None


def _are_in(text: str, markers: Iterable[str]) -> bool:
    position = 0
    for marker in markers:
        index = text.find(marker, position)
        if index < 0:
            return False
        position = index + len(marker)
    return True


def _system() -> Message:
    return {"role": "system", "content": "systeman"}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str | None, *values: str) -> Message:
    calls = [_call(value) for value in values]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _call(value: str, arguments: str | None = None) -> Message:
    """Return a tool call with an id like OpenAI's, for a test conversation.

    The value of its only argument is the marker word `value`. `arguments` replaces the arguments, as JSON text.
    """
    text = json.dumps({"key": value}) if arguments is None else arguments
    return {"id": f"call_{value}", "type": "function", "function": {"name": _FUNCTION, "arguments": text}}


def _result(text: str, value: str) -> Message:
    """Return a message with the text `text`: the result of the tool call of `_call` with the marker word `value`."""
    return {"role": "tool", "tool_call_id": f"call_{value}", "name": _FUNCTION, "content": text}
