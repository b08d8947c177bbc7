"""Variables to the text that a model was trained on, by the Jinja template of its directory.

Rendered in a sandbox with the settings of Hugging Face's `apply_chat_template` (transformers documentation, "Chat
templates"): `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now` and a `tojson` that keeps
characters as they are. The engine built into onnxruntime-genai lacks parts of Jinja.
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
from genai_server.text.prompts.template_sandbox import TemplateSandbox

# The scripted runner reads its script from the last line and needs a mark where the prompt ends.
# It says that it reads tools and reasoning, in the formats that it names, so that a script can write both.
SCRIPTED_TEMPLATE = (
    "{# <tool_call> <think></think> tool_calls #}{% if tools or enable_thinking %}{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}\x04"
)
MAX_CHARACTERS = 4 * 1024 * 1024
_LONGEST_SOURCE = 1024 * 1024
_LONGEST_REASON = 500
# strftime makes up to 256 times as many characters of a pattern.
_LONGEST_PATTERN = 256


class ChatTemplate:
    """A compiled template. Raises ModelDirectoryError if it is not valid Jinja."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, max_characters: int = MAX_CHARACTERS
    ) -> None:
        if len(source) > _LONGEST_SOURCE:
            raise ModelDirectoryError(
                f"the model's chat template has {len(source)} characters; at most {_LONGEST_SOURCE} are allowed"
            )
        environment = TemplateSandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        environment.add_filter("tojson", _to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self.source = source
        # Variables such as `bos_token` with their values.
        self._special_tokens = dict(special_tokens or {})
        # A longer text is refused while it is rendered.
        self._max_characters = max_characters
        self._environment = environment
        try:
            self._template = environment.from_string(source)
            syntax = environment.parse(source)
            # The names of all other variables that it reads.
            self.variables = _inputs(syntax) - {*environment.globals, *self._special_tokens}
        except Exception as error:  # it may, say, be nested too deep for Python
            raise ModelDirectoryError(f"the model's chat template is not valid: {error}") from None
        texts = [node.value for node in syntax.find_all(Const)] + [node.data for node in syntax.find_all(TemplateData)]
        # Whether it looks for tools in a message, as Phi-4-mini's does.
        self.reads_tools_of_messages = _reads_field(syntax, "tools")
        # The texts in its source.
        self.constants = frozenset(text for text in texts if isinstance(text, str))

    def mentions(self, text: str) -> bool:
        """Whether a text occurs in the template's source."""
        return text in self.source

    @property
    def takes_tools(self) -> bool:
        """Whether the template can describe tools to the model."""
        return "tools" in self.variables or self.reads_tools_of_messages

    def render(self, variables: Mapping[str, Any]) -> str:
        """The template's text.

        Raises TypeError if the template adds a text to another type. Raises InvalidField, with the template's own
        words, for all else that it refuses, and if it takes too long or makes too much on the way
        (template_sandbox.py).
        """
        pieces = []
        left = self._max_characters
        try:
            with self._environment.metered(self._max_characters):
                for piece in self._template.generate(**{**self._special_tokens, **variables}):
                    pieces.append(piece)
                    left -= len(piece)
                    if left < 0:
                        raise TemplateError(f"they make a prompt of more than {self._max_characters} characters")
        except TypeError:
            raise
        except Exception as error:  # a template is a program from elsewhere and may fail in any way
            raise refused(error) from None
        return "".join(pieces)


def refused(error: Exception) -> InvalidField:
    """The error for what a template refuses: the messages are at fault, as far as can be known."""
    reason = str(error)[:_LONGEST_REASON]
    return InvalidField(f"the model's chat template refuses these messages: {reason}", param="messages")


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, with which templates mark the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _inputs(syntax: Template) -> frozenset[str]:
    """The variables that a template takes from outside, as opposed to those that it sets before it reads them.

    Jinja counts among the former what is set in one branch and read after it; Llama 3.1 does so with `tools`.
    """
    first: dict[str, str] = {}
    for name in _names(syntax):
        first.setdefault(name.name, name.ctx)
    return frozenset(
        name for name in find_undeclared_variables(syntax) if first[name] == "load" or name in ("messages", "tools")
    )


def _reads_field(syntax: Template, name: str) -> bool:
    """Whether a template reads this field of anything."""
    return any(field.attr == name for field in syntax.find_all(Getattr)) or any(
        isinstance(item.arg, Const) and item.arg.value == name for item in syntax.find_all(Getitem)
    )


def _names(node: Node) -> Iterator[Name]:
    """The names in a program, that which is assigned before that to which it is assigned."""
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
    return datetime.now().strftime(pattern[:_LONGEST_PATTERN])
