"""Renders the prompt of a conversation: chooses the template, converts the messages to a form that it accepts, fills in
variables, and guards special tokens.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from genai_server.errors import InvalidField, NoChatTemplate
from genai_server.quoted_values import quoted
from genai_server.text.prompts.chat_template import ChatTemplate, refused
from genai_server.text.prompts.special_tokens import Prompt, SpecialTokenGuard
from genai_server.text.prompts.template_files import DEFAULT
from genai_server.text.tool_formats.tool_format import Call, ToolFormat

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
_WITH_TOOLS = "tool_use"
# Parts without text, with what templates for lists of parts call them.
MEDIA: Mapping[str, Collection[str]] = {"image": {"image", "image_url"}, "audio": {"audio", "input_audio"}}
_KWARGS = "chat_template_kwargs"
_GENERATION_PROMPT = "add_generation_prompt"
CONTINUE = "continue_final_message"
_RESERVED = {"messages", "tools"}
# Marks the end of a final message that the answer continues. Neither valid text nor special_tokens.py uses it.
_END = "\ud800"
# Marks the place of an image or a sound, for templates that take only texts.
_MEDIUM = "\ud801"


class PromptWriter:
    """Renders prompts with a model's named templates, if any.

    Texts in `special_tokens` are encoded as tokens only where the templates contain them. If a template does not
    support tool calls, they are written in `tool_format`. If it does not support images or sounds, each is
    `image_marker`.
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
        """Whether a template reads a variable."""
        return any(name in template.variables for template in self._templates.values())

    @property
    def takes_tools(self) -> bool:
        """Whether a template can describe tools to the model."""
        return any(template.takes_tools for template in self._templates.values())

    @property
    def source(self) -> str:
        """The template for conversations; "" without one."""
        return self._templates[DEFAULT].source if self._templates else ""

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._templates)

    def require_template(self) -> None:
        """Raise NoChatTemplate if the model has no chat template."""
        if not self.has_template:
            raise NoChatTemplate(
                "this model has no chat template and accepts no messages: send a raw prompt to /v1/completions; the "
                "operator can give it a template, a file or a name such as chatml (GENAI_CHAT_TEMPLATE or "
                "--chat-template)",
                param="messages",
            )

    def write(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, template_kwargs: Mapping[str, Any] | None
    ) -> Prompt:
        """Render the prompt up to where the answer begins.

        Raises InvalidField, whose `param` names the field, if the template cannot use it or refuses the messages, and
        NoChatTemplate.
        """
        self.require_template()
        if not self._image_marker:
            _check_that_no_medium_is_given(messages)
        template = self._templates[_WITH_TOOLS if tools and _WITH_TOOLS in self._templates else DEFAULT]
        _check_that_nothing_is_ignored(template, messages, tools, self._tool_format)
        given, add_prompt, continues = _options(template, template_kwargs or {})
        variables = {name: self._guard.cover(value, _KWARGS) for name, value in given.items()}
        variables |= {
            "documents": variables.get("documents"),
            "tools": self._guard.cover(tools, "tools") or None,
            _GENERATION_PROMPT: add_prompt,
        }
        error = None
        for form in _forms(template, messages, tools):
            covered = self._covered(template, form)
            if continues:
                covered[-1] = _with_end(covered[-1])
            try:
                rendered = template.render({**variables, "messages": covered})
            except TypeError as again:
                error = error or again
                continue
            rendered = _up_to_end(rendered) if continues else rendered
            return self._guard.uncover(rendered.replace(_MEDIUM, self._image_marker))
        assert error is not None
        raise refused(error)

    def _covered(self, template: ChatTemplate, form: Sequence[Message]) -> list[dict[str, Any]]:
        covered = self._guard.cover_messages(form, "messages")
        covered = [_with_types_of_parts(message, given) for message, given in zip(covered, form, strict=True)]
        covered = [_with_marks(message, template.constants) for message in covered]
        if self._tool_format is None or _knows_calls(template):
            return covered
        role = "tool" if "tool" in template.constants else self._tool_format.result_role
        # Added after covering, because the format's markers are genuine special tokens.
        return [_with_calls_as_content(message, self._tool_format, role) for message in covered]


def _knows_calls(template: ChatTemplate) -> bool:
    return "tool_calls" in template.source


def _forms(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool] | None
) -> Iterator[list[dict[str, Any]]]:
    """The messages in the forms that templates accept, with the tools in a message if the template reads them there."""
    for form in conversation_forms(
        messages,
        knows_developer="developer" in template.source,
        knows_calls=_knows_calls(template),
        reads_thinking="message.thinking" in template.source,
    ):
        if tools and "tools" not in template.variables:
            yield from _with_tools(form, tools)
        else:
            yield form


def conversation_forms(
    messages: Sequence[Message], *, knows_developer: bool, knows_calls: bool = True, reads_thinking: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """The forms that templates accept, the most common one first.

    In the most common form, tool call arguments are objects rather than JSON text, and a message without content has
    None. Some templates concatenate either of them to a text, and therefore need a text. Templates without tool calls
    do not concatenate arguments. Other fields that are null or an empty list are omitted. Content parts are joined by
    line breaks, unless one is an image or a sound. The role developer becomes system unless the template knows it. With
    `reads_thinking`, reasoning is also in the field `thinking`, which gpt-oss's template requires; it refuses both
    reasoning and content next to calls.

    Raises InvalidField, naming the field, for arguments that are not a JSON object and for parts of unknown types.
    """
    plain = [_with_plain_fields(message, f"messages[{n}]", knows_developer) for n, message in enumerate(messages)]
    if reads_thinking:
        plain = [_with_thinking(message) for message in plain]
    usual = [_with_objects(message, f"messages[{n}]") for n, message in enumerate(plain)]
    forms = [usual] if usual == plain or not knows_calls else [usual, plain]
    yield from forms
    if any(message["content"] is None for message in plain):
        for form in forms:
            yield [{**message, "content": message["content"] or ""} for message in form]


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> Iterator[list[dict[str, Any]]]:
    """The messages with the tools in the first one, a system message, in the forms that templates accept.

    These are the tools unchanged and, for templates that concatenate them to a text, the functions as JSON.
    """
    first, *others = messages if messages[0]["role"] == "system" else [{"role": "system", "content": ""}, *messages]
    functions = [tool.get("function", tool) for tool in tools]
    for given in (list(tools), json.dumps(functions, ensure_ascii=False)):
        yield [{**first, "tools": given}, *others]


def _with_calls_as_content(message: dict[str, Any], tool_format: ToolFormat, result_role: str) -> dict[str, Any]:
    """A message, whose arguments are objects, for a template without tool calls.

    Tool calls become the text that the model would write. A result gets the given role.
    """
    if message["role"] == "tool":
        return {**message, "role": result_role}
    given = [call["function"] for call in message.get("tool_calls", [])]
    if not given:
        return message
    text = tool_format.write_calls([Call(one["name"], one["arguments"]) for one in given])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {**message, "content": content}


def _with_plain_fields(message: Message, place: str, knows_developer: bool) -> dict[str, Any]:
    # Some templates check whether a message has a field, not its value.
    plain = {name: value for name, value in message.items() if value is not None and value != []}
    plain.setdefault("content", None)
    if isinstance(parts := plain["content"], list):
        texts = [_text_of(part, f"{place}.content[{n}]") for n, part in enumerate(parts) if not _is_medium(part)]
        if len(texts) == len(parts):
            plain["content"] = "\n".join(texts)
    if plain.get("role") == "developer" and not knows_developer:
        plain["role"] = "system"
    return plain


def _with_types_of_parts(covered: dict[str, Any], given: Message) -> dict[str, Any]:
    """A covered message with the types of its parts as templates know them, which are no texts of the request."""
    if not isinstance(parts := given["content"], list):
        return covered
    types = [part["type"] for part in parts]
    return {
        **covered,
        "content": [{**part, "type": type} for part, type in zip(covered["content"], types, strict=True)],
    }


def _is_medium(part: Any) -> bool:
    return isinstance(part, Mapping) and part.keys() == {"type"} and part["type"] in MEDIA


def num_media(messages: Sequence[Message]) -> int:
    """The number of images and sounds."""
    contents = (message.get("content") for message in messages)
    return sum(_is_medium(part) for parts in contents if isinstance(parts, list) for part in parts)


def _with_marks(message: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """A message for a template that knows none of its images and sounds: a mark is in the place of each."""
    if not isinstance(parts := message["content"], list):
        return message
    if any(name in known for part in parts for name in MEDIA.get(part["type"], ())):
        return message
    return {**message, "content": "\n".join(part.get("text", _MEDIUM) for part in parts)}


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    thought = message.get("reasoning_content")
    if thought is None or (message["content"] and "tool_calls" in message):
        return message
    return {**message, "thinking": thought}


def _text_of(part: Any, place: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidField(f"{place} must be a part of type text; this model supports no other type", param=place)
    return text


def _with_objects(message: dict[str, Any], place: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call, f"{place}.tool_calls[{n}]") for n, call in enumerate(calls)]}


def _with_object(call: Any, place: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    param = f"{place}.function.arguments"
    try:
        # Some models write an empty text for no arguments, and their clients send it back.
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidField(f"{param} must be JSON: {error}", param=param) from None
    if not isinstance(arguments, dict):
        raise InvalidField(f"{param} must be a JSON object; given {quoted(function['arguments'])}", param=param)
    return {**call, "function": {**function, "arguments": arguments}}


def _check_that_no_medium_is_given(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        parts = message.get("content")
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if _is_medium(part):
                place, noun = (
                    f"messages[{number}].content[{index}]",
                    "an image" if part["type"] == "image" else "a sound",
                )
                raise InvalidField(f"{place} is {noun}, and this model reads text only", param=place)


def _check_that_nothing_is_ignored(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    tool_format: ToolFormat | None,
) -> None:
    if tools and not template.takes_tools:
        raise InvalidField("this model does not support tools: its chat template does not read them", param="tools")
    if tool_format is None and not _knows_calls(template):
        for n, message in enumerate(messages):
            if message.get("tool_calls"):
                param = f"messages[{n}].tool_calls"
                raise InvalidField(f"{param}: this model's chat template does not support tool calls", param=param)


def _options(template: ChatTemplate, given: Mapping[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    """The template's variables, whether to add the generation prompt, and whether to continue the final message."""
    variables = dict(given)
    continues = _flag(variables, CONTINUE, default=False)
    if _GENERATION_PROMPT not in template.variables:
        add_prompt = True
    else:
        add_prompt = _flag(variables, _GENERATION_PROMPT, default=not continues)
    if continues and add_prompt and _GENERATION_PROMPT in given:
        raise InvalidField(f"{_KWARGS}: {CONTINUE} and {_GENERATION_PROMPT} cannot be combined", param=_KWARGS)
    known = template.variables - _RESERVED
    for name in variables:
        if name in _RESERVED:
            raise InvalidField(f"{_KWARGS}.{name} is a field of the request itself", param=_KWARGS)
        if name not in known:
            shown = ", ".join(sorted({*known, CONTINUE}))
            raise InvalidField(
                f"{_KWARGS}.{name} is not read by the model's chat template, which reads {shown}", param=_KWARGS
            )
    return variables, add_prompt, continues


def _flag(variables: dict[str, Any], name: str, *, default: bool) -> bool:
    value = variables.pop(name, default)
    if not isinstance(value, bool):
        raise InvalidField(f"{_KWARGS}.{name} must be true or false; given {quoted(value)}", param=_KWARGS)
    return value


def _with_end(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") != "assistant" or not isinstance(message.get("content"), str):
        raise InvalidField(
            f"with {CONTINUE} the last message must be from the assistant and have content", param="messages"
        )
    return {**message, "content": message["content"] + _END}


def _up_to_end(rendered: str) -> str:
    text, end, _ = rendered.rpartition(_END)
    if not end:
        raise InvalidField(f"{_KWARGS}.{CONTINUE}: the chat template omits the last message", param=_KWARGS)
    return text
