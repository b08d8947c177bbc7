"""Third-party chat templates with random changes: each soon renders, or is refused or refuses messages."""

import os
import re
import time
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from genai_server.errors import InvalidField, ModelDirectoryError
from genai_server.text.prompts.chat_template import SCRIPTED_TEMPLATE, ChatTemplate
from tests.running_server import DEMO

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))
# Far above what any takes on a busy machine, far below an endless loop.
MAX_SECONDS = 20
MAX_CHARACTERS = 20_000
SOURCES = [SCRIPTED_TEMPLATE, (DEMO / "chat_template.jinja").read_text(encoding="utf-8")]
# Tags, expressions, comments and the text between them, as in Jinja's lexer.
PIECES = [re.findall(r"\{[%{#].*?[%}#]\}|[^{]+|\{", source, re.DOTALL) for source in SOURCES]
HOSTILE = [
    "{% for a in range(99999) %}{{ a }}{% endfor %}",
    "{{ range(10**12) }}",
    "{{ 'a' * 10**5 }}",
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__ }}{{ self._TemplateReference__context }}",
    "{% macro m(a) %}{{ m(a) }}{% endmacro %}{{ m(1) }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}{{ os.environ }}",
    "{{ raise_exception(messages) }}",
    "{{ strftime_now('%Q' * 99) }}",
    "{{ messages | tojson(indent=9) }}",
    "{{ messages.append(1) }}",
    "{{ namespace(a=1).a / 0 }}",
    "{{ 'x' | attr('__init__') }}{{ '%99999d' % 1 }}{{ '{0.__class__}'.format(1) }}",
    "{% set messages = messages + messages %}",
    "{% generation %}",
    "{% endfor %}",
    "{%- if",
    "\x00\ud800",
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]},
    {"role": "tool", "content": "1", "tool_call_id": "c"},
]
VARIABLES: dict[str, Any] = {
    "messages": MESSAGES,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "add_generation_prompt": True,
    "enable_thinking": True,
}


@st.composite
def changed_templates(draw: st.DrawFn) -> str:
    """A real template with pieces removed, doubled, swapped or added."""
    pieces = list(draw(st.sampled_from(PIECES)))
    for _ in range(draw(st.integers(1, 6))):
        at, other = (draw(st.integers(0, max(0, len(pieces) - 1))) for _ in range(2))
        match draw(st.sampled_from(["drop", "double", "swap", "add", "cut"])):
            case "drop":
                del pieces[at : at + 1]
            case "double":
                pieces[at:at] = pieces[at : at + draw(st.integers(1, 4))]
            case "swap" if pieces:
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case "add":
                pieces.insert(at, draw(st.sampled_from(HOSTILE) | st.sampled_from(PIECES[1]) | st.text(max_size=5)))
            case _ if pieces:
                pieces[at] = pieces[at][: draw(st.integers(0, 9))]
    return "".join(pieces)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(changed_templates())
@example("".join(HOSTILE[:3]))
def test_mutated_template_renders_or_is_refused(source: str) -> None:
    started = time.process_time()  # which a busy machine does not change
    try:
        text = ChatTemplate(source, {"bos_token": "<s>"}, max_characters=MAX_CHARACTERS).render(VARIABLES)
        assert len(text) <= MAX_CHARACTERS
    except ModelDirectoryError as error:
        assert "chat template is not valid" in error.message
    except (InvalidField, TypeError):
        pass  # a TypeError makes the caller try messages of another form
    assert time.process_time() - started < MAX_SECONDS
