"""OpenAI's decisions: the answers of the demo model by OpenAI's client, and what is refused."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from genai_server.engine_client.in_flight import InFlight
from genai_server.errors import RunnerFailed
from genai_server.generation.engine_requests import EngineAnswer, EngineRequests
from genai_server.http.api_keys import line_of
from genai_server.messages.generation_request import GenerationRequest
from tests.apis.fields import UNKNOWN, VALUE
from tests.running_server import DEMO, RunningServer, body, refusal, wait_until
from tests.server_here import run_here

KEY = "0123456789abcdef"
INPUT = "It will rain all afternoon. Paris is the capital of France, and it is raining there, too."
PREDICATE = {"type": "predicate", "name": "rain", "instructions": "It rains."}
CHOICES: list[dict[str, Any]] = [
    {"value": "sun and rain", "description": "both"},
    {"value": "sun and snow"},
    {"value": "sun"},
    {"value": True},
]
CHOICE = {"type": "choice", "name": "weather", "instructions": "How is the weather?", "choices": CHOICES}
LEVELS = [{"label": "dry"}, {"label": "wet"}, {"label": "very wet", "description": "floods"}]
SCORE = {"type": "score", "instructions": "How wet is it?", "levels": LEVELS}
VALUES = [choice["value"] for choice in CHOICES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_here(tmp_path_factory.mktemp("decisions"), "--model-dir", str(DEMO), "--device", "cpu") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def decide(client: OpenAI, *questions: Any, input: Any = INPUT, **fields: Any) -> Any:
    return client.decisions.create(model="", input=input, questions=questions, extra_body={"model": None, **fields})


def answers(client: OpenAI, *questions: Any, **fields: Any) -> list[Any]:
    return list(decide(client, *questions, **fields).answers)


def asked(server: RunningServer, *questions: Any, **fields: Any) -> Any:
    return server.client.post("/v1/decisions", json={"input": INPUT, "questions": questions, **fields})


def test_each_question_has_its_answer(client: OpenAI) -> None:
    predicate, choice, score = answers(client, PREDICATE, CHOICE, SCORE)
    assert [one.type for one in (predicate, choice, score)] == ["predicate", "choice", "score"]
    assert (predicate.name, 0 < predicate.probability < 1) == ("rain", True)
    assert [one.value for one in choice.probabilities] == VALUES
    shares = [one.probability for one in choice.probabilities]
    assert sum(shares) == pytest.approx(1)
    assert choice.choice == VALUES[shares.index(max(shares))]
    assert choice.confidence == pytest.approx((4 * max(shares) - 1) / 3)
    labels = [(one.value, one.label) for one in score.probabilities]
    assert (score.name, labels) == (None, [(0, "dry"), (1, "wet"), (2, "very wet")])
    assert score.score == pytest.approx(score.probabilities[1].probability + 2 * score.probabilities[2].probability)


def reference(server: RunningServer, question: str, answers: Sequence[str]) -> list[float]:
    """The probabilities of answers to a chat, from the log probabilities of prompts that end with them."""
    post = server.client.post
    messages = [{"role": "user", "content": f"{INPUT}\n\n{question}"}]
    prompt = post("/v1/chat/completions/render", json={"messages": messages}).json()["token_ids"]
    options = [post("/tokenize", json={"content": answer}).json()["tokens"] for answer in answers]
    known: dict[tuple[int, ...], dict[int, float]] = {}
    for option in options:
        body = {"prompt": [*prompt, *option], "echo": True, "logprobs": 0, "max_tokens": 0}
        found = post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["token_logprobs"][-len(option) :]
        for length, (token, logprob) in enumerate(zip(option, found, strict=True)):
            known.setdefault(tuple(option[:length]), {})[token] = logprob

    def share(option: Sequence[int], length: int) -> float:
        together = known[tuple(option[:length])]
        return math.exp(together[option[length]]) / sum(map(math.exp, together.values()))

    return [math.prod(share(option, length) for length in range(len(option))) for option in options]


def test_probabilities_are_those_of_the_options_tokens(server: RunningServer, client: OpenAI) -> None:
    predicate, choice, score = answers(client, PREDICATE, CHOICE, SCORE)
    question = 'Is the following true? It rains.\nAnswer {"answer": true} or {"answer": false}.'
    true, _ = reference(server, question, ['{"answer": true}', '{"answer": false}'])
    assert predicate.probability == pytest.approx(true, rel=1e-4)
    for found, asked, lines, values in (
        (choice, "How is the weather?", '- "sun and rain": both\n- "sun and snow"\n- "sun"\n- true', VALUES),
        (score, "How wet is it?", '- "dry"\n- "wet"\n- "very wet": floods', [level["label"] for level in LEVELS]),
    ):
        question = f'Question: {asked}\n{lines}\nAnswer {{"answer": …}} with one of these.'
        expected = reference(server, question, [json.dumps({"answer": value}) for value in values])
        assert [one.probability for one in found.probabilities] == pytest.approx(expected, rel=1e-4)


def test_a_chat_with_a_schema_decides_the_same(server: RunningServer, client: OpenAI) -> None:
    texts = ["It rains.", "The sun shines.", "Paris is in France.", "It is late.", "Rain is wet.", "It is dry."]
    schema = {"properties": {"answer": {"type": "boolean"}}, "required": ["answer"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", **schema}}}
    decided = answers(client, *[{**PREDICATE, "instructions": text} for text in texts])
    for text, found in zip(texts, decided, strict=True):
        question = f'Is the following true? {text}\nAnswer {{"answer": true}} or {{"answer": false}}.'
        asked = body(f"{INPUT}\n\n{question}", temperature=0, response_format=form)
        answer = server.client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
        assert json.loads(answer) == {"answer": found.probability > 0.5}


def test_a_question_has_the_same_answer_in_any_company(client: OpenAI) -> None:
    questions = PREDICATE, CHOICE, SCORE
    together = answers(client, *questions, cache_salt="together")
    assert [answers(client, one, cache_salt=str(n))[0] for n, one in enumerate(questions)] == together


def test_the_order_of_options_need_not_matter(client: OpenAI) -> None:
    def probabilities(choices: Sequence[Any], **fields: Any) -> dict[Any, float]:
        (found,) = answers(client, {**CHOICE, "choices": choices}, **fields)
        return {one.value: one.probability for one in found.probabilities}

    orders = [CHOICES, CHOICES[::-1], [CHOICES[n] for n in (2, 0, 3, 1)]]
    first, *others = [probabilities(choices, order_invariant=True) for choices in orders]
    assert others == [first, first]
    assert sum(first.values()) == pytest.approx(1)
    assert probabilities(orders[0]) != probabilities(orders[1])


def test_temperature_makes_options_alike(client: OpenAI) -> None:
    found = [answers(client, CHOICE, temperature=temperature)[0].confidence for temperature in (100, 1, 0.1)]
    assert found == sorted(set(found))


def test_messages_calls_and_json_are_read(client: OpenAI) -> None:
    data = {"weather": ["rain", "é"]}
    content = [{"type": "input_text", "text": "Weather? "}, {"type": "input_json", "data": data}]
    later = [
        {"role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
        {"role": "user", "content": "Thanks."},
    ]
    conversation = [{"role": "user", "content": content}, *later]
    found = answers(client, PREDICATE, input=conversation)
    as_text = [{"role": "user", "content": 'Weather? {"weather":["rain","é"]}'}, *later]
    assert answers(client, PREDICATE, input=as_text) == found
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "rain"}
    assert answers(client, PREDICATE, input=[*conversation, call, output]) != found
    parts = [{"type": "input_text", "text": "It "}, {"type": "input_text", "text": "rains."}]
    assert answers(client, {**PREDICATE, "instructions": parts}) == answers(client, PREDICATE)
    assert answers(client, PREDICATE, input=data) == answers(client, PREDICATE, input='{"weather":["rain","é"]}')


def test_the_input_counts_once(server: RunningServer, client: OpenAI) -> None:
    one = decide(client, PREDICATE, cache_salt="one").usage
    three = decide(client, PREDICATE, PREDICATE, PREDICATE, cache_salt="three").usage
    input = server.client.post("/tokenize", json={"content": INPUT}).json()["count"]
    assert input < one.input_tokens < three.input_tokens < 3 * one.input_tokens - 2 * input + 1
    assert (one.output_tokens, one.input_tokens_details.cached_tokens) == (0, 0)
    again = decide(client, PREDICATE, cache_salt="one").usage
    assert again.input_tokens == again.total_tokens == one.input_tokens
    assert again.input_tokens_details.cached_tokens >= input


def test_a_question_that_fails_costs_no_other_answer(
    server: RunningServer, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failing = EngineRequests.run, {2}
    numbers = iter(range(100))

    async def some(self: EngineRequests, request: GenerationRequest, **fields: Any) -> EngineAnswer:
        if next(numbers) in failing:
            raise RunnerFailed("the pass failed")
        return await run(self, request, **fields)

    monkeypatch.setattr(EngineRequests, "run", some)
    *others, third = answers(client, *[{**PREDICATE, "name": name} for name in "abc"])
    assert (third.type, third.name) == ("refusal", "c")
    assert third.model_extra == {"error": {"code": "runner_failed", "message": "the pass failed"}}
    assert [one.type for one in others] == ["predicate"] * 2
    failing |= set(range(100))
    assert refusal(asked(server, PREDICATE, PREDICATE)) == (500, "runner_failed", None)


def test_as_many_questions_are_asked_at_a_time_as_run_at_once(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, running = InFlight.submit, list[int]()

    async def counted(self: InFlight, *requests: GenerationRequest, **fields: Any) -> Any:
        streams = await submit(self, *requests, **fields)
        running.append(len(self))
        return streams

    monkeypatch.setattr(InFlight, "submit", counted)
    questions = [{**PREDICATE, "instructions": f"It rains {n} times."} for n in range(60)]
    assert len(answers(client, *questions)) == 60
    assert 2 <= max(running) <= 16  # GENAI_MAX_BATCH_SIZE


def test_each_question_counts_for_the_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(line_of("ann", KEY) + " concurrent=2")
    with run_here(tmp_path, "--device", "scripted", "--api-key-file", str(tmp_path / "keys")) as limited:
        limited.client.headers["authorization"] = f"Bearer {KEY}"
        assert asked(limited, PREDICATE, PREDICATE).status_code == 200
        assert refusal(asked(limited, PREDICATE, PREDICATE, PREDICATE)) == (400, "invalid_value", "questions")


def test_nothing_is_left_running_for_a_client_that_has_left(server: RunningServer) -> None:
    questions = [{**PREDICATE, "instructions": f"It rains {n} times."} for n in range(400)]
    with pytest.raises(httpx.TimeoutException):
        server.client.post("/v1/decisions", json={"input": INPUT, "questions": questions}, timeout=0.2)
    wait_until(lambda: server.client.get("/v1/requests").json()["data"] == [])


def test_the_deadline_ends_all(server: RunningServer) -> None:
    assert refusal(asked(server, *[PREDICATE] * 100, timeout=0.001)) == (504, "timeout", None)


@pytest.mark.parametrize(
    ("questions", "fields", "code", "param"),
    [
        ([], {}, VALUE, "questions"),
        ([PREDICATE] * 401, {}, VALUE, "questions"),
        ([{**CHOICE, "choices": CHOICES[:1]}], {}, VALUE, "questions[0].choices"),
        ([PREDICATE, {**CHOICE, "choices": [*CHOICES, CHOICES[2]]}], {}, VALUE, "questions[1].choices[4].value"),
        ([{**SCORE, "levels": [*LEVELS, LEVELS[0]]}], {}, VALUE, "questions[0].levels[3].label"),
        ([{"type": "guess", "instructions": "x"}], {}, VALUE, "questions[0]"),
        ([{**PREDICATE, "instructions": ""}], {}, VALUE, "questions[0].instructions"),
        ([{**PREDICATE, "criteria": 1}], {}, UNKNOWN, "questions[0].criteria"),
        ([PREDICATE], {"input": []}, VALUE, "input"),
        ([PREDICATE], {"input": [{"role": "user", "content": [{"type": "input_json", "data": 1}]}]}, VALUE, "input"),
        ([PREDICATE], {"temperature": 0}, VALUE, "temperature"),
        ([PREDICATE], {"chat_template_kwargs": {"x": 1}}, VALUE, "chat_template_kwargs"),
        ([PREDICATE, {**PREDICATE, "instructions": "rain " * 3000}], {}, "context_length_exceeded", "questions[1]"),
        (
            [{**CHOICE, "choices": [{"value": f"{n} {m}"} for m in range(255)]} for n in range(33)],
            {},
            VALUE,
            "questions",
        ),
    ],
)
def test_invalid_field_is_named(
    server: RunningServer, questions: list[Any], fields: dict[str, Any], code: str, param: str
) -> None:
    assert refusal(asked(server, *questions, **fields)) == (400, code, param)


def test_openais_fields_without_effect_are_accepted(client: OpenAI) -> None:
    without = {"prompt_cache_key": "a", "prompt_cache_options": {"mode": "implicit"}, "safety_identifier": "b"}
    assert answers(client, PREDICATE, **without) == answers(client, PREDICATE)


def test_an_image_is_refused_by_a_model_that_reads_text(server: RunningServer) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    refused = asked(server, PREDICATE, input=[{"role": "user", "content": [image]}])
    assert refusal(refused) == (400, VALUE, "input[0].content[0]")
    assert asked(server, {**PREDICATE, "instructions": [image]}).status_code == 400
