"""Which of other servers' tests apply here, and how their results are read."""

import json

import pytest
from _clients.client import Check
from _clients.verdicts import of_case, of_report, script_of, why_not_here

REPORT = """<testsuites><testsuite>
<testcase classname="unit.test_chat_completion" name="test_logprobs"/>
<testcase classname="unit.test_chat_completion" name="test_logit_bias"><failure message="assert 1 == 2"/></testcase>
<testcase classname="unit.test_completion" name="test_logit_bias[True-True]"><failure message="no"/></testcase>
<testcase classname="unit.test_completion" name="test_cache_vs_nocache_prompt"><skipped message="not now"/></testcase>
<testcase classname="unit.test_tokenize" name="test_tokenize_detokenize"><error message="no fixture"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("name", "applies"),
    [
        ("test_chat_template", False),
        ("test_chat_template_continue_final_message_mutual_exclusion", True),
        ("test_chat_completion[None-Book]", False),
        ("test_chat_completion_with_openai_library", False),
        ("test_completion_with_response_format[response_format1-10-x]", False),
        ("test_completion_with_response_format[response_format4-0-x]", True),
        ("test_anthropic_vision_format_accepted", False),
        ("test_a_test_of_tomorrow", True),
    ],
)
def test_a_test_applies_unless_it_is_named(name: str, applies: bool) -> None:
    assert (why_not_here(name) == "") is applies


def test_report_lists_applicable_tests_that_were_run() -> None:
    assert list(of_report(REPORT)) == [
        Check("chat completions"),
        Check("chat completions", "test_logit_bias: assert 1 == 2"),
        Check("tokenize", "test_tokenize_detokenize: no fixture"),
    ]


def test_case_knows_what_to_call_and_when_to_end() -> None:
    case = {"tool_name": "get_weather", "input": "?", "expected_arguments": '{"location":"São Paulo"}'}
    first, second = script_of(case).splitlines()
    assert first.startswith("script: say <think>")
    assert json.dumps({"name": "get_weather", "arguments": {"location": "São Paulo"}}, ensure_ascii=False) in first
    assert second == 'script after "weather": say done'


def test_a_case_fails_on_other_arguments_too() -> None:
    result = {"apiType": "chat", "success": True, "details": {}, "toolCallingDetails": {}}
    assert of_case({"tool_name": "t", "result": result}) == Check("its cases over chat")
    warned = {**result, "toolCallingDetails": {"warning": "wrong"}}
    assert of_case({"tool_name": "t", "result": warned}).why == "t: {'warning': 'wrong'}"
    assert of_case({"tool_name": "t", "error": "400"}) == Check("the program", "t: 400")
