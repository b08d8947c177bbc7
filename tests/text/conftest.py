"""A tokenizer with the markers of all formats."""

import json

import pytest
from tokenizers import Tokenizer

from genai_server.text.grammars import grammar
from tests.running_server import DEMO
from tests.text.guided import Vocabulary, tokenizer_with

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
def model() -> Vocabulary:
    tokenizer, content = tokenizer_with(DEMO / "tokenizer.json", ADDED)
    encoder = Tokenizer.from_str(json.dumps(content))
    return Vocabulary(tokenizer, lambda text: encoder.encode(text).ids, grammar.find_opaque_tokens(content))
