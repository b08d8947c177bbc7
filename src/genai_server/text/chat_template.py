"""Messages to the prompt that a model was trained on, by the Jinja template of its directory.

Rendered in a sandbox with the settings of Hugging Face's `apply_chat_template` (transformers documentation, "Chat
templates"): `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now` and a `tojson` that keeps
characters as they are. The engine built into onnxruntime-genai lacks parts of Jinja.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from genai_server.errors import InvalidField, ModelDirectoryError

_FILE = "chat_template.jinja"
_TOKENIZER_CONFIG = "tokenizer_config.json"
# The scripted runner reads its script from the last line and needs a mark where the prompt ends.
# It says that it reads tools and reasoning, in the formats that it names, so that a script can write both.
SCRIPTED_TEMPLATE = (
    "{# <tool_call> <think></think> #}{% if tools or enable_thinking %}{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}\x04"
)


class ChatTemplate:
    """A compiled template; `special_tokens` are the variables such as `bos_token` that it may use.

    Raises ModelDirectoryError if the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._special_tokens = dict(special_tokens)
        self.source = source
        try:
            self._template = environment.from_string(source)
            self._reads = find_undeclared_variables(environment.parse(source)) - set(environment.globals)
        except TemplateError as error:
            raise ModelDirectoryError(f"the model's chat template is not valid: {error}") from None

    def reads(self, name: str) -> bool:
        """Whether the template reads a variable."""
        return name in self._reads

    def mentions(self, text: str) -> bool:
        """Whether a text occurs in the template's source."""
        return text in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt up to where the assistant's answer begins. Raises InvalidField if the template refuses them."""
        try:
            return self._template.render(
                **more,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except Exception as error:  # a template is a program from elsewhere and may fail in any way
            raise InvalidField(f"the model's chat template refuses these messages: {error}", param="messages") from None


def load_chat_template(model_dir: Path) -> ChatTemplate:
    """The template of a model directory: `chat_template.jinja`, else `chat_template` in tokenizer_config.json.

    Raises ModelDirectoryError if there is none or it is not valid.
    """
    config = json.loads((model_dir / _TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    path = model_dir / _FILE
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several named ones
        source = next((one["template"] for one in source if one.get("name") == "default"), None)
    if not isinstance(source, str):
        raise ModelDirectoryError(f"model directory {model_dir} has no chat template")
    return ChatTemplate(source, _special_tokens(config))


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, with which templates mark the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, each given as a text or as an object with its `content`."""
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
