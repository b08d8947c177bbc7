"""Which of other servers' tests apply here, what the model must do in them, and how their results are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.etree import ElementTree

from .client import Check

# What each file of llama.cpp's tests is about. Other files test what only that server has.
FILES = {
    "test_chat_completion": "chat completions",
    "test_completion": "completions",
    "test_compat_anthropic": "messages",
    "test_compat_oai_responses": "responses",
    "test_tokenize": "tokenize",
}
# Tests that cannot pass here, with all their cases, by the reason; a star stands for any end.
_NOT_HERE = {
    "counts or words of the small model that they load": (
        "test_chat_completion",
        "test_chat_completion_cached_tokens",
        "test_chat_completion_stream",
        "test_return_progress",
        "test_completion_with_response_format[response_format1-*",
    ),
    "a `system_fingerprint` that begins with `b`": (
        "test_chat_completion_with_openai_library",
        "test_completion_with_openai_library",
    ),
    "a setting of another server that is started for the test": (
        "test_chat_template",
        "test_chat_template_assistant_prefill",
        "test_chat_template_continue_final_message_vllm_compat",
        "test_apply_chat_template",
        "test_anthropic_thinking_history*",
        "test_tokenize_with_bos",
    ),
    "fields of llama.cpp alone": (
        "test_completion_with_json_schema",
        "test_completion_with_grammar",
        "test_completion_with_response_format[response_format0-*",
        "test_chat_completion_with_timings_per_token",
        "test_chat_completions_multiple_choices",
        "test_chat_completions_token_count",
        "test_verbose_debug",
        "test_responses_stream_with_llama_telemetry",
    ),
    "llama.cpp's own form of an error": ("test_context_size_exceeded*", "test_anthropic_tool_result_with_image"),
    "llama.cpp's own `/completion`": (
        "test_completion",
        "test_completion_stream",
        "test_completion_stream_vs_non_stream",
        "test_consistent_result*",
        "test_different_result*",
        "test_nocache_long_input_prompt",
        "test_json_prompt*",
        "test_completion_with_tokens_input",
        "test_completion_parallel_slots",
        "test_completion_unified",
        "test_completion_response_fields",
        "test_n_probs*",
        "test_logit_bias[*",
        "test_cancel_request",
        "test_completion_prompt_cache",
    ),
    "models to download": (
        "test_anthropic_vision*",
        "test_anthropic_thinking_with_reasoning_model",
        "test_completion_stream_with_openai_library_stops",
    ),
    "what OpenAI or Anthropic refuses: no name of a schema, a small budget of thinking, no messages": (
        "test_completion_with_response_format[response_format2-*",
        "test_anthropic_thinking",
        "test_anthropic_empty_messages",
    ),
    "another form: `content` of a first chunk is empty text, as OpenAI's; pieces come next to the tokens": (
        "test_logprobs_stream",
        "test_tokenize_with_pieces",
    ),
    "an error for two messages of the assistant in a row, which is no error here": (
        "test_invalid_chat_completion_req[messages7]*",
    ),
}
# A word that occurs only in the tool's result.
_RESULTS = {
    "get_system_health": "uptime_seconds",
    "markdown_to_html": '{"html":',
    "detect_language": '"language"',
    "generate_chart": "image_png_base64",
    "query_database": "row_count",
    "get_weather": '"weather"',
}


def of_report(report: str) -> Iterator[Check]:
    """The tests of pytest's report that apply here."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.get("classname", "").rpartition(".")[2]
        name = case.get("name", "")
        if case.find("skipped") is not None or why_not_here(name):
            continue
        failure = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        why = "" if failure is None else f"{name}: {failure.get('message', '')}"
        yield Check(FILES.get(file, file), why)


def why_not_here(name: str) -> str:
    """Why a test of llama.cpp's does not apply; "" if it does."""
    return next((reason for reason, names in _NOT_HERE.items() if any(_means(name, one) for one in names)), "")


def _means(name: str, pattern: str) -> bool:
    """Whether a name of _NOT_HERE means this test."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name.partition("[")[0] == pattern


def script_of(case: dict[str, str]) -> str:
    """The script for the model: think, call the tool with the expected arguments, and end."""
    call = {"name": case["tool_name"], "arguments": json.loads(case["expected_arguments"])}
    written = json.dumps(call, ensure_ascii=False)
    return (
        f"script: say <think>⏎I call it.⏎</think>⏎⏎<tool_call>⏎{written}⏎</tool_call>\n"
        f"script after {_RESULTS[case['tool_name']]}: say done"
    )


def of_case(report: dict[str, object]) -> Check:
    """A line of its results; `error` stands where both APIs have none."""
    name, result = str(report["tool_name"]), report.get("result")
    if not isinstance(result, dict):
        return Check("the program", f"{name}: {report.get('error')}")
    details = {**result["details"], **result["toolCallingDetails"]}
    why = "" if result["success"] and not details.get("warning") else f"{name}: {details}"
    return Check(f"its cases over {result['apiType']}", why)
