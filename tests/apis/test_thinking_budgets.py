"""Budgets of thoughts, in every format of reasoning and on every API."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from genai_server.text.answers.reasoning import HARMONY, REASONING_FORMATS
from genai_server.text.tool_formats import harmony
from tests.running_server import RunningServer

BUDGET = 200
FORMATS = tuple(REASONING_FORMATS)


def script(form: str, thought: str, *, message: str = "") -> str:
    """An answer that says yes where a thought of this text is closed by the server, and thinks on where it is not.

    The tokens of the scripted model are bytes, and the server's own take the place of as many of these.
    """
    reasoning = REASONING_FORMATS[form]
    answer = f"{harmony.FINAL}yes" if reasoning is HARMONY else "yes"
    return f"say {reasoning.opening}{thought}{'b' * len(message + reasoning.end(''))}{answer}"


class Answered(NamedTuple):
    """What an API returned of an answer."""

    thought: str
    text: str
    num_reasoning: int


def _chat_completions(server: RunningServer, question: str, budget: int | None, **fields: Any) -> Answered:
    asked = {"messages": [{"role": "user", "content": question}], "thinking_token_budget": budget, **fields}
    body = server.client.post("/v1/chat/completions", json=asked).json()
    message = body["choices"][0]["message"]
    details = body["usage"]["completion_tokens_details"]
    return Answered(message.get("reasoning_content", ""), message["content"], details["reasoning_tokens"])


Ask = Callable[[RunningServer, str, int | None], Answered]
APIS: dict[str, Ask] = {"chat completions": _chat_completions}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("api", APIS)
def test_a_thought_is_closed_at_its_budget_and_the_answer_follows(
    thinking_server: Callable[[str], RunningServer], form: str, api: str
) -> None:
    server = thinking_server(form)
    thought, text, num_reasoning = APIS[api](server, script(form, "a" * BUDGET), BUDGET)
    assert (thought, text) == ("a" * BUDGET, "yes")
    assert num_reasoning in (BUDGET, BUDGET + 1)  # a line break before the end may count


@pytest.mark.parametrize("form", FORMATS)
def test_a_thought_ends_with_a_sentence_in_the_last_tenth_of_its_budget(
    thinking_server: Callable[[str], RunningServer], form: str
) -> None:
    thought = f"{'a' * 170}. {'c' * 11}."
    assert len(thought) < BUDGET
    found = _chat_completions(thinking_server(form), script(form, thought), BUDGET)
    assert (found.thought, found.text) == (thought, "yes")


@pytest.mark.parametrize("form", FORMATS)
def test_the_message_stands_at_the_end_of_a_closed_thought(
    thinking_server: Callable[[str], RunningServer], form: str
) -> None:
    said = " I answer <b>now</b>. é"
    asked = script(form, "a" * 20, message="".join(map(chr, said.encode())))
    found = _chat_completions(thinking_server(form), asked, 20, reasoning_budget_message=said)
    assert (found.thought, found.text) == ("a" * 20 + said, "yes")


def test_later_thoughts_of_an_answer_count_and_lead_to_the_answer(
    thinking_server: Callable[[str], RunningServer],
) -> None:
    server = thinking_server("harmony")
    thoughts = f"{'a' * 15}{harmony.NEXT_MESSAGE}{HARMONY.opening}{'c' * 5}{'b' * len(HARMONY.end(''))}"
    # The first thought ends by itself, the second at the budget of both, and the third at once.
    asked = f"say {HARMONY.opening}{thoughts}{HARMONY.opening}{'b' * len(HARMONY.later_end(''))}yes"
    found = _chat_completions(server, asked, 15 + len(harmony.END) + 5)
    assert (found.thought, found.text) == ("a" * 15 + "\n\n" + "c" * 5, "yes")
