"""The model's formats, detected in its chat template."""

import pytest

from genai_server.errors import ConfigurationError
from genai_server.text.answers.dialect import Dialect, read_dialect
from genai_server.text.answers.reasoning import HARMONY, THINK
from genai_server.text.tool_formats.registry import TOOL_FORMATS


def test_template_without_markers_has_no_formats() -> None:
    assert read_dialect("{{ messages }}") == Dialect(None, None)


def test_template_determines_both_formats() -> None:
    assert read_dialect("<tool_call> </think>") == Dialect(TOOL_FORMATS["hermes"], THINK)


def test_the_operator_may_name_a_format_or_none() -> None:
    assert read_dialect("{{ messages }}", "hermes").tool_format is TOOL_FORMATS["hermes"]
    assert read_dialect("<tool_call>", "none").tool_format is None


def test_a_model_of_harmony_reasons_in_its_messages() -> None:
    assert read_dialect("<|channel|>analysis<|message|> functions.") == Dialect(TOOL_FORMATS["harmony"], HARMONY)
    assert read_dialect("<|channel|>analysis<|message|>", "none") == Dialect(None, HARMONY)
    assert read_dialect("<tool_call> </think>", "harmony") == Dialect(TOOL_FORMATS["harmony"], HARMONY)


def test_an_unknown_format_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match=r"GENAI_TOOL_PARSER=yaml: .*hermes"):
        read_dialect("", "yaml")
