"""Renders the prompt of a conversation with the model's chat templates (`PromptWriter`).

It chooses the template, converts the messages to forms that the template writes, sets the template's variables, and
keeps special tokens in the request's texts from being encoded as special tokens.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from genai_server.errors import InvalidField, NoChatTemplate
from genai_server.text.prompts.chat_template import DEFAULT, END, ChatTemplate, TemplateRefusal, TemplateRendering, Tool
from genai_server.text.prompts.conversation import REASONING, Conversation, Message, convert, is_medium
from genai_server.text.prompts.special_tokens import Prompt, SpecialTokenGuard
from genai_server.text.prompts.template_probe import probe
from genai_server.text.prompts.template_traits import TEXTS_BY_TURNS, TemplateTraits, ThinkingVariables
from genai_server.text.tool_formats.tool_format import ToolFormat

_WITH_TOOLS = "tool_use"
_KWARGS = "chat_template_kwargs"
_GENERATION_PROMPT = "add_generation_prompt"
CONTINUE = "continue_final_message"
_RESERVED = {"messages", "tools"}


class WrittenPrompt(NamedTuple):
    """A rendered prompt, with notes on the conversation that it was made from.

    `prompt` is the text in pieces for the tokenizer. `converted` are the parts of the conversation that were rewritten,
    and `left_out` those that were left out, each as a path and an explanation. `media` has, for each image or audio
    clip of the prompt, its index among those in the messages.
    """

    prompt: Prompt
    converted: Sequence[tuple[str, str]] = ()
    left_out: Sequence[tuple[str, str]] = ()
    # For each image or audio clip of the prompt, its index among those in the messages.
    media: Sequence[int] = ()

    @property
    def text(self) -> str:
        """The complete text of the prompt."""
        return self.prompt.text


class PromptWriter:
    """Renders prompts with the chat templates of one model. TextCodec creates it.

    `templates` maps names such as "default" to the templates, and is empty for a model without a chat template. Texts
    in `special_tokens` are encoded as special tokens only where the templates contain them. If a template does not
    support tool calls, calls are written as text in `tool_format`. If a template does not support images or audio,
    `image_marker` is written in place of each.
    """

    def __init__(
        self,
        templates: Mapping[str, ChatTemplate],
        special_tokens: Collection[str] = (),
        tool_format: ToolFormat | None = None,
        image_marker: str = "",
    ) -> None:
        self._templates = templates
        self._image_marker = image_marker
        self._tool_format = tool_format
        constants = frozenset[str]().union(*(template.constants for template in templates.values()))
        self._guard = SpecialTokenGuard(special_tokens, constants)

    def reads(self, name: str) -> bool:
        """Whether any of the model's chat templates reads the variable `name`."""
        return any(name in template.variables for template in self._templates.values())

    @property
    def takes_tools(self) -> bool:
        """Whether one of the chat templates reads tools, so that it can describe them to the model."""
        return any(template.takes_tools for template in self._templates.values())

    @property
    def source(self) -> str:
        """The source of the chat template for conversations without tools; "" if the model has no chat template."""
        return self._templates[DEFAULT].source if self._templates else ""

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._templates)

    def require_template(self) -> None:
        """Raise NoChatTemplate, an error for the client, if the model has no chat template."""
        if not self.has_template:
            raise NoChatTemplate(
                "messages",
                "cannot be used: this model has no chat template; send a raw prompt to /v1/completions, or let the "
                "operator give it a template, a file or a name such as chatml (GENAI_CHAT_TEMPLATE or "
                "--chat-template)",
            )

    def prepare(self) -> None:
        """Find out in advance what the templates can write (about 20 ms), so that no request has to wait for this."""
        if self._templates:
            self.traits()
            self.traits(with_tools=self.takes_tools)

    @property
    def adaptations(self) -> Sequence[str]:
        """Sentences for the operator that say which parts of conversations the prompts have in another form.

        Empty if the templates write everything, or if there are none.
        """
        return tuple(self.traits(with_tools=self.takes_tools).in_words()) if self._templates else ()

    def traits(self, *, with_tools: bool = False) -> TemplateTraits:
        """Return what the chat template can write, and in which forms: for conversations with tools or, by default,
        without.

        The result is cached per template. The model must have a chat template.
        """
        return probe(
            self._template(with_tools=with_tools), self._tool_format, self._image_marker, with_tools=with_tools
        )

    @property
    def thinking(self) -> ThinkingVariables:
        """The template variables that set whether the model reasons, and with which effort; empty if there are none."""
        if not self._templates:
            return ThinkingVariables()
        plain = self.traits()
        return plain.thinking if plain.is_known else self.traits(with_tools=True).thinking

    def write(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, template_kwargs: Mapping[str, Any] | None
    ) -> WrittenPrompt:
        """Render the prompt of a conversation, up to the position where the answer begins.

        `template_kwargs` are variables that the request sets for the template. Raises InvalidField, whose `param` names
        the field, if the template cannot use a field or refuses these messages in every form, and NoChatTemplate if the
        model has no template.
        """
        self.require_template()
        if not self._image_marker:
            _check_no_media(messages)
        template = self._template(with_tools=bool(tools))
        _check_tools(template, tools or ())
        options, add_prompt, continues = _options(template, template_kwargs or {})
        variables = {name: self._guard.cover(value, _KWARGS) for name, value in options.items()}
        end = {
            "documents": variables.get("documents"),
            "tools": self._guard.cover(tools, "tools") or None,
            _GENERATION_PROMPT: add_prompt,
        }
        if continues:
            _check_no_call_follows(messages[-1])
        traits = self.traits(with_tools=bool(tools))

        def write(conversation: Conversation, variables: Mapping[str, Any]) -> WrittenPrompt:
            written = self._written(template, conversation, tools or (), {**variables, **end}, traits, continues)
            return written._replace(media=conversation.media_order(messages))

        conversation = convert(messages, traits, continues=continues)
        try:
            return write(conversation, variables)
        except TemplateRefusal as refusal:
            plain = convert(messages, replace(traits, **TEXTS_BY_TURNS), continues=continues)
            if plain.messages != conversation.messages and (written := _unless_refused(write, plain, variables)):
                return written
            if options and _unless_refused(write, conversation, {}):
                raise InvalidField(_KWARGS, f"cannot be used: {refusal.message}") from None
            raise

    def _template(self, *, with_tools: bool) -> ChatTemplate:
        return self._templates[_WITH_TOOLS if with_tools and _WITH_TOOLS in self._templates else DEFAULT]

    def _written(
        self,
        template: ChatTemplate,
        conversation: Conversation,
        tools: Sequence[Tool],
        variables: Mapping[str, Any],
        traits: TemplateTraits,
        continues: bool,
    ) -> WrittenPrompt:
        messages, sources, notes = conversation
        if continues:
            _check_continuable(messages[-1])
        rendering = TemplateRendering(template, self._guard, self._tool_format, self._image_marker)
        rendered = rendering.render(messages, tools, variables, traits, suffix=END if continues else "")
        text = _up_to_end(rendered.text) if continues else rendered.text
        for number, (message, source) in enumerate(zip(messages, sources, strict=True)):
            if message.get(traits.reasoning_field) and number not in rendered.with_reasoning:
                notes.leave_out(f"messages[{source}].{REASONING}", "the chat template writes none there")
        return WrittenPrompt(self._guard.uncover(text), notes.converted, notes.left_out)


def _unless_refused(
    write: Callable[[Conversation, Mapping[str, Any]], WrittenPrompt],
    conversation: Conversation,
    variables: Mapping[str, Any],
) -> WrittenPrompt | None:
    try:
        return write(conversation, variables)
    except TemplateRefusal:
        return None


def _check_no_media(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        parts = message.get("content")
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if is_medium(part):
                path, noun = (
                    f"messages[{number}].content[{index}]",
                    "an image" if part["type"] == "image" else "a sound",
                )
                raise InvalidField(path, f"is {noun}, and this model reads text only")


def _check_tools(template: ChatTemplate, tools: Sequence[Tool]) -> None:
    if tools and not template.takes_tools:
        raise InvalidField("tools", "are not supported by this model: its chat template does not read them")


def _options(template: ChatTemplate, request_variables: Mapping[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    """Separate the variables that a request sets for a chat template from two options that stand among them.

    Returns the variables, whether to add the beginning of an answer to the prompt (`add_generation_prompt`), and
    whether the answer continues the last message (`continue_final_message`). Raises InvalidField for variables that the
    template does not read, and for options that contradict each other.
    """
    variables = dict(request_variables)
    continues = _flag(variables, CONTINUE, default=False)
    if _GENERATION_PROMPT not in template.variables:
        add_prompt = True
    else:
        add_prompt = _flag(variables, _GENERATION_PROMPT, default=not continues)
    if continues and add_prompt and _GENERATION_PROMPT in request_variables:
        raise InvalidField(_KWARGS, f"cannot be used: {CONTINUE} and {_GENERATION_PROMPT} cannot be combined")
    supported = template.variables - _RESERVED
    for name in variables:
        if name in _RESERVED:
            raise InvalidField(_KWARGS, f"must not have {name}, a field of the request itself")
        if name not in supported:
            shown = ", ".join(sorted({*supported, CONTINUE}))
            raise InvalidField(_KWARGS, f"has {name}, which the model's chat template does not read; it reads {shown}")
    return variables, add_prompt, continues


def _flag(variables: dict[str, Any], name: str, *, default: bool) -> bool:
    value = variables.pop(name, default)
    if not isinstance(value, bool):
        raise InvalidField(_KWARGS, f"must have true or false as {name}", given=value)
    return value


def _check_no_call_follows(message: Message) -> None:
    if message.get("tool_calls"):
        raise InvalidField(
            "messages",
            f"must not end with tool calls where {CONTINUE} is true: a prompt has them after the content that the "
            "answer would continue",
        )


def _check_continuable(message: Message) -> None:
    if message.get("role") != "assistant" or not isinstance(message.get("content"), str):
        raise InvalidField(
            "messages", f"must end with a message of the assistant that has content where {CONTINUE} is true"
        )


def _up_to_end(rendered: str) -> str:
    text, end, _ = rendered.rpartition(END)
    if not end:
        raise InvalidField(_KWARGS, f"must not have {CONTINUE}: the chat template omits the last message")
    return text
