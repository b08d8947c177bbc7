"""Loads the Jinja chat templates of a model, and renders conversations with them.

`load_chat_templates` finds a template where Hugging Face's libraries store it, or loads the one that a setting names.
`ChatTemplate` renders variables. `TemplateRendering` renders conversations: it keeps special tokens in messages plain
text, and rewrites as text what the template does not read, such as tool calls.

Templates run in a sandbox with the settings of Hugging Face's `apply_chat_template` (transformers documentation, "Chat
templates"): `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now` and a `tojson` that keeps
characters unescaped. The template engine built into onnxruntime-genai is not used because it lacks parts of Jinja.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Const, Getattr, Getitem, Name, Node, Template, TemplateData
from jinja2.parser import Parser

from genai_server.errors import ChatTemplateError, InvalidField, ModelDirectoryError
from genai_server.model_files.config_files import read_object
from genai_server.text.prompts.conversation import MEDIA, Message
from genai_server.text.prompts.special_tokens import SpecialTokenGuard
from genai_server.text.prompts.template_sandbox import TemplateSandbox, TooCostly
from genai_server.text.prompts.template_traits import CallForm, TemplateTraits, ToolsPosition
from genai_server.text.tool_formats.tool_format import Call, ToolFormat

# The scripted runner reads its script from the last line and needs a mark where the prompt ends.
# It mentions tools and reasoning formats, so that scripts can write both.
SCRIPTED_TEMPLATE = (
    "{# <tool_call> <think></think> #}{% if tools or enable_thinking %}{% endif %}"
    "{% for m in messages %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %} {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
    "{{ '\n' }}{% endfor %}\x04"
)
MAX_CHARACTERS = 4 * 1024 * 1024
_MAX_SOURCE = 1024 * 1024
_MAX_REASON = 500
# strftime can expand a pattern up to 256-fold.
_MAX_PATTERN = 256


class TemplateRefusal(InvalidField, code="invalid_value"):
    """Error: a chat template refuses the messages of a request, or fails to render them. It may still render other
    messages.
    """


class ChatTemplate:
    """A compiled Jinja chat template. `special_tokens` maps variables such as `bos_token` to their texts.

    Two templates are equal if their source, special tokens and length limit are equal. The constructor raises
    ModelDirectoryError if the source is too long or not valid Jinja. The attributes `variables`, `fields` and
    `constants` are what the source contains: the names of the variables that it reads, the names of fields of any
    object, and all texts.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, max_characters: int = MAX_CHARACTERS
    ) -> None:
        if len(source) > _MAX_SOURCE:
            raise ModelDirectoryError(
                f"the model's chat template has {len(source)} characters; at most {_MAX_SOURCE} are allowed"
            )
        environment = TemplateSandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        environment.add_filter("tojson", _to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self.source = source
        # Values of variables such as `bos_token`.
        self._special_tokens = dict(special_tokens or {})
        # Longer texts are refused during rendering.
        self._max_characters = max_characters
        self._environment = environment
        try:
            self._template = environment.from_string(source)
            syntax = environment.parse(source)
            # Read before the variables, because finding these folds lists of constants.
            texts = [node.value for node in syntax.find_all(Const)] + [
                node.data for node in syntax.find_all(TemplateData)
            ]
            # The names of all other variables read by the template.
            self.variables = _inputs(syntax) - {*environment.globals, *self._special_tokens}
        except Exception as error:  # for example, it may be nested too deeply for Python
            raise ModelDirectoryError(f"the model's chat template is not valid: {error}") from None
        # The names of all fields that the template reads of any object.
        self.fields = frozenset(_fields(syntax))
        # All string constants and literal texts of the source.
        self.constants = frozenset(text for text in texts if isinstance(text, str))

    @property
    def takes_tools(self) -> bool:
        """Whether the template reads tools, so that it can describe them to the model."""
        # Phi-4-mini's template reads them from a message.
        return "tools" in self.variables or "tools" in self.fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.source, tuple(sorted(self._special_tokens.items())), self._max_characters

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template with these variables and return the text.

        Raises TemplateRefusal, with the template's own message, if the template fails, and InvalidField if rendering
        takes too long or produces too much text (the limits are in template_sandbox.py).
        """
        pieces = []
        remaining = self._max_characters
        try:
            with self._environment.metered(self._max_characters):
                for piece in self._template.generate(**{**self._special_tokens, **variables}):
                    pieces.append(piece)
                    remaining -= len(piece)
                    if remaining < 0:
                        raise TooCostly(f"the prompt has more than {self._max_characters} characters")
        except TooCostly as error:
            raise InvalidField("messages", _refusal(error)) from None
        except Exception as error:  # a template is a program from elsewhere and may fail in any way
            raise TemplateRefusal("messages", _refusal(error)) from None
        return "".join(pieces)


def _refusal(error: Exception) -> str:
    return f"are refused by the model's chat template: {str(error)[:_MAX_REASON]}"


class GenerationTag(Extension):
    """Jinja extension for the block `{% generation %}…{% endgeneration %}`, with which templates mark the assistant's
    text for training. The block has no effect; its content is rendered as usual.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _inputs(syntax: Template) -> frozenset[str]:
    """Return the names of the variables that a template takes as input, without those that it sets before it reads
    them.

    Jinja alone counts a variable as input if it is set in one branch and read afterwards, as `tools` in Llama 3.1's
    template. `messages` and `tools` always count as inputs if Jinja says so.
    """
    first: dict[str, str] = {}
    for name in _names(syntax):
        first.setdefault(name.name, name.ctx)
    return frozenset(
        name for name in find_undeclared_variables(syntax) if first[name] == "load" or name in ("messages", "tools")
    )


def _fields(syntax: Template) -> Iterator[str]:
    yield from (field.attr for field in syntax.find_all(Getattr))
    for item in syntax.find_all(Getitem):
        if isinstance(item.arg, Const) and isinstance(item.arg.value, str):
            yield item.arg.value


def _names(node: Node) -> Iterator[Name]:
    """Yield the variable names in the syntax tree of a template in order of evaluation: in an assignment, the value
    first.
    """
    if isinstance(node, Name):
        yield node
    children = list(node.iter_child_nodes())
    for child in sorted(children, key=lambda child: child is getattr(node, "target", None)):
        yield from _names(child)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern[:_MAX_PATTERN])


DEFAULT = "default"
_FILE = "chat_template.jinja"
_MORE_FILES = "additional_chat_templates"
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Templates included in the package, for models without one.
_KNOWN = {path.stem: path for path in sorted(Path(__file__).with_name("chat_templates").glob("*.jinja"))}
NAMES = tuple(_KNOWN)
_RERANK = Path(__file__).with_name("rerank_templates") / "qwen3-reranker.jinja"


def load_chat_templates(
    model_dir: Path, chosen: str = "", *, max_characters: int = MAX_CHARACTERS
) -> dict[str, ChatTemplate]:
    """Return the chat templates of the model in the folder `model_dir`, keyed by name; empty if none is named
    "default".

    `chosen` is a file, or one of NAMES, the templates that the server includes; it replaces the model's own templates.
    These are the file `chat_template.jinja` ("default") and the files `NAME.jinja` in the folder
    `additional_chat_templates`. Without any of these files, they are the value of `chat_template` in
    tokenizer_config.json: a string, or a list of objects with `name` and `template`. Rendered prompts may have at most
    `max_characters`. Raises ModelDirectoryError if a template of the model is not valid, and ChatTemplateError if
    `chosen` cannot be used.
    """
    special_tokens = load_special_tokens(model_dir)
    if chosen:
        try:
            return {DEFAULT: ChatTemplate(_given(chosen), special_tokens, max_characters=max_characters)}
        except ModelDirectoryError as error:
            raise ChatTemplateError(f"{chosen}: {error.message}") from None
    sources = _from_files(model_dir) or _from_config(model_dir)
    if DEFAULT not in sources:
        return {}
    return {
        name: ChatTemplate(source, special_tokens, max_characters=max_characters) for name, source in sources.items()
    }


def load_special_tokens(model_dir: Path) -> dict[str, str]:
    """Return the texts of a model's special tokens, keyed by role, such as `eos_token`, from its tokenizer_config.json.

    Raises ModelDirectoryError if the file cannot be read.
    """
    tokens = {}
    for name, value in read_object(model_dir / _TOKENIZER_CONFIG).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def load_rerank_template(model_dir: Path, *, max_characters: int = MAX_CHARACTERS) -> dict[str, ChatTemplate]:
    """Return the template for the prompts of a reranker that is a decoder (a generative model), as a map with the key
    "default".

    It is the model's own template if it supports queries and documents, else the template of Qwen3-Reranker. Rendered
    prompts may have at most `max_characters`. Raises ModelDirectoryError if the model's template is not valid.
    """
    templates = load_chat_templates(model_dir, max_characters=max_characters)
    if DEFAULT in templates and all(role in templates[DEFAULT].source for role in ("query", "document")):
        return templates
    return {DEFAULT: ChatTemplate(_read(_RERANK), max_characters=max_characters)}


def _given(name: str) -> str:
    path = _KNOWN.get(name, Path(name))
    if not path.is_file():
        raise ChatTemplateError(
            f"{name}: no such file, and no chat template with this name; known names: {', '.join(NAMES)}"
        )
    return _read(path)


def _from_files(model_dir: Path) -> dict[str, str]:
    files = {path.stem: path for path in sorted((model_dir / _MORE_FILES).glob("*.jinja"))}
    if (model_dir / _FILE).is_file():
        files[DEFAULT] = model_dir / _FILE
    return {name: _read(path) for name, path in files.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path} cannot be read: {error}") from None


def _from_config(model_dir: Path) -> dict[str, str]:
    match read_object(model_dir / _TOKENIZER_CONFIG).get("chat_template"):
        case None | "":
            return {}
        case str(source):
            return {DEFAULT: source}
        case [*entries] if all(_is_named(entry) for entry in entries):
            return {entry["name"]: entry["template"] for entry in entries}
    raise ModelDirectoryError(
        f"chat_template in {model_dir / _TOKENIZER_CONFIG} must be a text, or a list of objects with name and template"
    )


def _is_named(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


Tool = Mapping[str, Any]
# The following characters are lone surrogates: neither valid text nor used by special_tokens.py.
# Marks the end of a final message that the answer continues.
END = "\ud800"
# Marks the position of an image or audio clip, for templates that take only texts.
_MEDIUM = "\ud801"
# Marks a message's reasoning, to see whether a template writes it: the message's number in two characters.
_REASONING = re.compile("[\ud900-\ud9ff][\uda00-\udaff]")
# Finds a position within a word. Marks are inserted there because templates trim reasoning and split it at tags and
# line breaks, which changes nothing within a word.
_WITHIN_WORD = re.compile(r"(?<=\w)(?=\w)")


class Rendered(NamedTuple):
    """The output of a chat template.

    In its `text`, special tokens of messages are still replaced by other characters (see SpecialTokenGuard).
    `with_reasoning` has the indexes of the messages whose reasoning the text contains.
    """

    text: str
    with_reasoning: set[int]


class TemplateRendering:
    """Renders conversations with one chat template, in forms that the template can write. PromptWriter creates it.

    `guard` keeps special tokens in messages plain text. Tool calls that the template cannot write are written as text
    in `tool_format`, and `image_marker` stands for an image or audio clip that it cannot write.
    """

    def __init__(
        self, template: ChatTemplate, guard: SpecialTokenGuard, tool_format: ToolFormat | None, image_marker: str
    ) -> None:
        self.template = template
        self._guard = guard
        self._tool_format = tool_format
        self._image_marker = image_marker

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: Mapping[str, Any],
        traits: TemplateTraits,
        *,
        suffix: str = "",
    ) -> Rendered:
        """Render messages, which conversation.py has converted to forms that the template reads, and return the output.

        `variables` are the template's other variables, and `suffix` is appended to the content of the last message.
        `traits` says in which form the template reads calls, tools and reasoning. Raises InvalidField if a value cannot
        be rendered, and TemplateRefusal if the template refuses the messages.
        """
        num_given = len(messages)
        if tools:
            messages = _with_tools(messages, tools, traits.tools_position)
        covered = self._guard.cover_messages(messages, "messages")
        covered = [_with_types_of_parts(message, original) for message, original in zip(covered, messages, strict=True)]
        covered = [_with_marks(message, self.template.constants) for message in covered]
        if traits.calls is CallForm.IN_CONTENT and self._tool_format is not None:
            role = "tool" if "tool" in self.template.constants else self._tool_format.result_role
            # Added after covering, because the format's markers are genuine special tokens.
            covered = [_with_calls_as_content(message, self._tool_format, role) for message in covered]
        is_marked = _mark_reasoning(covered, traits.reasoning_field)
        if suffix:
            covered[-1]["content"] += suffix
        text = self.template.render({**variables, "messages": covered})
        with_reasoning = set()
        if is_marked:
            num_added = len(messages) - num_given
            with_reasoning = {_marked_message(mark) - num_added for mark in _REASONING.findall(text)}
            text = _REASONING.sub("", text)
        return Rendered(text.replace(_MEDIUM, self._image_marker), with_reasoning)


def _with_tools(messages: Sequence[Message], tools: Sequence[Tool], position: ToolsPosition) -> Sequence[Message]:
    """Return the messages with the tools in the field `tools` of a first system message, for templates that read them
    there.

    For templates that read tools from a variable, the messages are returned unchanged.
    """
    if position is ToolsPosition.VARIABLE:
        return messages
    value: Any = list(tools)
    if position is ToolsPosition.JSON_IN_MESSAGE:
        value = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    has_system = messages and messages[0]["role"] == "system"
    first, *remaining = messages if has_system else [{"role": "system", "content": ""}, *messages]
    return [{**first, "tools": value}, *remaining]


def _with_calls_as_content(message: dict[str, Any], tool_format: ToolFormat, result_role: str) -> dict[str, Any]:
    """Return a message for a template that cannot write tool calls.

    Tool calls, whose arguments must be objects, become text of the message in `tool_format`, as the model would write
    them. A tool result gets the role `result_role`.
    """
    if message["role"] == "tool":
        return {**message, "role": result_role}
    functions = [call["function"] for call in message.get("tool_calls", [])]
    if not functions:
        return message
    text = tool_format.write_calls([Call(function["name"], function["arguments"]) for function in functions])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}


def _with_types_of_parts(covered: dict[str, Any], original: Message) -> dict[str, Any]:
    """Return the message `covered`, in whose texts special tokens have been replaced, with the original `type`s of its
    parts.

    `original` is the message before the replacement. The types of content parts, such as "image", must stay because
    templates compare them.
    """
    if not isinstance(parts := original["content"], list):
        return covered
    types = [part["type"] for part in parts]
    return {
        **covered,
        "content": [{**part, "type": type} for part, type in zip(covered["content"], types, strict=True)],
    }


def _with_marks(message: dict[str, Any], constants: Collection[str]) -> dict[str, Any]:
    """Return a message whose content is one text, in which a private character stands for each image and audio clip.

    A message is returned unchanged if its content is not a list of parts, or if the template supports images or audio,
    which its texts `constants` show.
    """
    if not isinstance(parts := message["content"], list):
        return message
    if any(name in constants for part in parts for name in MEDIA.get(part["type"], ())):
        return message
    return {**message, "content": "\n".join(part.get("text", _MEDIUM) for part in parts)}


def _mark_reasoning(messages: Sequence[dict[str, Any]], field: str) -> bool:
    """Insert a mark into the reasoning of each message, to find out later whether the template has written it.

    The messages are changed in place. `field` is the field with the reasoning. The mark encodes the index of the
    message. Returns whether any message has reasoning.
    """
    is_marked = False
    for number, message in enumerate(messages):
        if not isinstance(text := message.get(field), str) or not text.strip():
            continue
        is_marked = True
        mark = chr(0xD900 + (number >> 8 & 0xFF)) + chr(0xDA00 + (number & 0xFF))
        match = _WITHIN_WORD.search(text)
        position = match.start() if match else len(text.rstrip())
        message[field] = text[:position] + mark + text[position:]
    return is_marked


def _marked_message(mark: str) -> int:
    return (ord(mark[0]) - 0xD900 << 8) + ord(mark[1]) - 0xDA00
