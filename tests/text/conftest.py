"""A tokenizer with the markers of all formats."""

from typing import Any

import pytest
from llguidance import LLTokenizer

from tests.running_server import DEMO
from tests.text.guided import tokenizer_with

# Flagged like the tokenizers of Qwen 3, Llama 3, Phi-4-mini and Mistral.
ADDED = {
    **dict.fromkeys(["<tool_call>", "</tool_call>", "<think>", "</think>", "<|tool_call|>", "<|/tool_call|>"], False),
    **dict.fromkeys(["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"], False),
    **dict.fromkeys(["<minimax:tool_call>", "</minimax:tool_call>"], False),
    **dict.fromkeys(["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"], False),
    **dict.fromkeys(["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"], False),
    **dict.fromkeys(["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"], False),
    **dict.fromkeys(["<|tool_call_end|>", "<|tool_calls_section_end|>"], False),
    **dict.fromkeys(["<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]"], True),
    **dict.fromkeys(["<|tool_call_start|>", "<TOOLCALL>", "</TOOLCALL>"], True),
    **dict.fromkeys(["<function_calls>", "</function_calls>"], False),
}


@pytest.fixture(scope="session")
def model() -> tuple[LLTokenizer, dict[str, Any]]:
    return tokenizer_with(DEMO / "tokenizer.json", ADDED)
