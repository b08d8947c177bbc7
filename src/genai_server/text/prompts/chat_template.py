"""Renders the Jinja chat template of a model directory.

Templates run in a sandbox with the settings of Hugging Face's `apply_chat_template` (transformers documentation, "Chat
templates"): `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now` and a `tojson` that keeps
characters unescaped. The template engine built into onnxruntime-genai is not used because it lacks parts of Jinja.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Const, Getattr, Getitem, Name, Node, Template, TemplateData
from jinja2.parser import Parser

from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.text.prompts.template_sandbox import TemplateSandbox, TooCostly

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
    """A chat template refuses or fails to render these messages. It may still render other messages."""


class ChatTemplate:
    """A compiled chat template. Two templates are equal if their source, special tokens and length limit are equal.

    The constructor raises ModelDirectoryError if the source is not valid Jinja.
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
        """Whether the template can describe tools to the model."""
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
        takes too long or produces too much text (limits: template_sandbox.py).
        """
        pieces = []
        left = self._max_characters
        try:
            with self._environment.metered(self._max_characters):
                for piece in self._template.generate(**{**self._special_tokens, **variables}):
                    pieces.append(piece)
                    left -= len(piece)
                    if left < 0:
                        raise TooCostly(f"the prompt has more than {self._max_characters} characters")
        except TooCostly as error:
            raise InvalidField("messages", _refusal(error)) from None
        except Exception as error:  # a template is a program from elsewhere and may fail in any way
            raise TemplateRefusal("messages", _refusal(error)) from None
        return "".join(pieces)


def _refusal(error: Exception) -> str:
    return f"are refused by the model's chat template: {str(error)[:_MAX_REASON]}"


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, with which templates mark the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _inputs(syntax: Template) -> frozenset[str]:
    """Return the names of a template's input variables, without variables that the template sets before it reads them.

    Jinja counts a variable as input if it is set in one branch and read afterwards, as `tools` in Llama 3.1's template.
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
    """Yield the names in a template in order of evaluation: assigned values before assignment targets."""
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
