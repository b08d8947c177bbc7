"""Requests with grammars, biases, no tokens at all and log probabilities, from their arrival at the loop on."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from genai_server.engine.ipc.mailbox import Disconnected
from genai_server.generation import FinishReason, GenerationRequest, Sampling, TokenLogprob
from genai_server.messages.admin import SetRuntimeOption
from genai_server.messages.error import ErrorInfo
from genai_server.messages.figures import Load
from genai_server.messages.protocol import Accepted, Cancel, Failed, Finished, PromptLogprobs, Refused, Submit, Tokens
from tests.engine.test_loop import API, OTHER_API, Bench
from tests.loop_steps import step_or_wait

# A rule that can be read in ever more ways the longer the answer is.
AMBIGUOUS = 'start: a\na: a a | "x" | "x" a "x" a'


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, max_running=2, max_waiting=1)


def step_until(bench: Bench, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        step_or_wait(bench.loop, bench.scheduler)


def run(bench: Bench, *keys: int) -> None:
    """Until these have been refused or have ended."""
    ends = Refused | Finished | Failed
    step_until(bench, lambda: all(any(isinstance(message, ends) for message in bench.of(key)) for key in keys))


@contextmanager
def nothing_compiles(bench: Bench) -> Iterator[None]:
    """What is to be compiled waits for the end of the block."""
    gate = threading.Event()
    bench.loop._admission._guidance._worker.submit(gate.wait)
    try:
        yield
    finally:
        gate.set()


# what belongs together


def test_what_belongs_together_is_taken_at_once_when_all_of_it_has_come(bench: Bench) -> None:
    bench.submit(1, "say a", more=True)
    bench.submit(2, "say b", more=True)
    bench.submit(7, "say c", connection=OTHER_API)
    bench.run()
    assert bench.of(1) == bench.of(2) == []
    assert bench.text(7) == "c"
    bench.sent.clear()
    bench.submit(3, "say d")
    bench.run()
    kinds = [type(message) for _, message in bench.sent if not isinstance(message, Load)]
    assert kinds[:3] == [Accepted] * 3
    assert [bench.text(key) for key in (1, 2, 3)] == ["a", "b", "d"]


def test_if_there_is_no_room_for_one_none_is_taken(bench: Bench) -> None:
    for key in (1, 2, 3, 4):
        bench.submit(key, "say a", more=key < 4)
    bench.steps(1)
    for key in (1, 2, 3, 4):
        (refused,) = bench.of(key)
        assert isinstance(refused, Refused)
        assert refused.error.code == "queue_full"
    assert bench.scheduler.is_idle
    bench.submit(5, "say b")
    bench.run()
    assert bench.text(5) == "b"


def test_if_one_is_wrong_the_others_grammar_is_waited_for_no_more(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"', more=True)
        bench.submit(2, "say a", sampling=Sampling(logit_bias={999: 1.0}))
        bench.steps(1)
        refused = [message for key in (1, 2) for message in bench.of(key)]
        params = [isinstance(message, Refused) and message.error.param for message in refused]
        assert params == ["logit_bias"] * 2
        assert len(bench.loop._requests) == 0
    step_until(bench, lambda: bool(bench.loop._admission._guidance._kept))
    assert len(bench.of(1)) == 1


def test_what_has_come_in_part_goes_with_its_reader(bench: Bench) -> None:
    bench.submit(1, "say a", more=True, connection=OTHER_API)
    bench.inbox.put((OTHER_API, Disconnected()))
    bench.submit(2, "say b", connection=OTHER_API)
    bench.run()
    assert bench.of(1) == []
    assert bench.text(2) == "b"


# grammars


def test_a_request_with_a_grammar_is_accepted_when_that_is_compiled_and_answered_within_it(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say b12; it goes on", grammar="start: /[a-c][0-9]{2}/")
        bench.steps(1)
        assert bench.of(1) == []
    run(bench, 1)
    assert [type(message) for message in bench.of(1)] == [Accepted, Tokens, Finished]
    assert (bench.text(1), bench.reason(1)) == ("b12", FinishReason.STOP)


def test_the_same_grammar_again_is_accepted_at_once(bench: Bench) -> None:
    bench.submit(1, "say b", grammar='start: "b"')
    run(bench, 1)
    with nothing_compiles(bench):
        bench.submit(2, "say b", grammar='start: "b"')
        run(bench, 2)
    assert bench.text(1) == bench.text(2) == "b"


def test_a_grammar_does_not_reach_beyond_its_request(bench: Bench) -> None:
    bench.submit(1, "say free")
    bench.submit(2, "say free", grammar="start: /[f-g]+/")
    run(bench, 1, 2)
    assert bench.text(1) == "free"
    assert set(bench.text(2)) == {"f"}


def test_a_wrong_grammar_is_refused_with_its_field(bench: Bench) -> None:
    bench.submit(1, "say a", grammar="start: (")
    run(bench, 1)
    (refused,) = bench.of(1)
    assert isinstance(refused, Refused)
    assert (refused.error.code, refused.error.param) == ("invalid_value", "grammar")
    assert "Expected token" in refused.error.message
    assert bench.scheduler.is_idle


def test_a_grammar_that_becomes_too_ambiguous_fails_its_request_alone(bench: Bench) -> None:
    bench.submit(1, "say " + "x" * 400, grammar=AMBIGUOUS)
    bench.submit(2, "count 100")
    run(bench, 1, 2)
    (end,) = bench.ends(1)
    assert isinstance(end, Failed)
    assert end.error.code == "grammar_failed"
    assert "grammar" in end.error.message
    assert bench.text(2).endswith(" 100")


def test_an_answer_goes_on_without_a_grammar_that_it_does_not_need_and_that_cannot_be_followed(bench: Bench) -> None:
    # For others it fails at the 200th token. The answer is cut off later, and not by an end of the grammar.
    bench.submit(1, "say " + "x" * 400, grammar=AMBIGUOUS, needs_grammar=False, max_tokens=300)
    bench.submit(2, "say a", grammar="start: (", needs_grammar=False)
    run(bench, 1, 2)
    bench.submit(3, "say b", grammar="start: (", needs_grammar=False)  # known to be wrong by now
    run(bench, 3)
    assert [bench.text(key) for key in (1, 2, 3)] == ["x" * 300, "a", "b"]
    assert [bench.reason(key) for key in (1, 2, 3)] == [FinishReason.LENGTH, FinishReason.STOP, FinishReason.STOP]


def test_who_leaves_while_the_grammar_is_compiled_is_never_answered(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"')
        bench.submit(2, "say a", grammar='start: "b"', connection=OTHER_API)
        bench.inbox.put((API, Cancel(1)))
        bench.inbox.put((OTHER_API, Disconnected()))
        bench.submit(3, "say c", grammar='start: "c"')
        bench.steps(1)
    run(bench, 3)
    assert bench.text(3) == "c"
    assert bench.of(1) == bench.of(2) == []


def test_a_request_whose_grammar_is_compiled_has_its_place_already(bench: Bench) -> None:
    with nothing_compiles(bench):
        for key in (1, 2, 3):
            bench.submit(key, "say a", grammar='start: "a"')
        bench.submit(4, "say a")
        bench.steps(1)
        (refused,) = bench.of(4)
        assert isinstance(refused, Refused)
        assert refused.error.code == "queue_full"
    run(bench, 1, 2, 3)
    assert [bench.text(key) for key in (1, 2, 3)] == ["a"] * 3


def test_a_device_that_is_terminated_while_the_grammar_is_compiled_refuses(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"')
        bench.inbox.put((API, SetRuntimeOption(7, "terminate_session", "1")))
        bench.steps(1)
    run(bench, 1)
    (refused,) = bench.of(1)
    assert isinstance(refused, Refused)
    assert refused.error.code == "session_terminated"


# biases


@pytest.mark.parametrize("token", [-1, 257, 10**9])
def test_a_bias_on_a_token_that_the_model_has_not_is_refused_with_its_field(bench: Bench, token: int) -> None:
    bench.submit(1, "say a", sampling=Sampling(logit_bias={5: 1.0, token: 1.0}))
    bench.steps(1)
    message = f"token {token} is not among the model's 257"
    assert bench.of(1) == [Refused(1, ErrorInfo("invalid_value", message, "logit_bias"))]


def test_a_bias_that_leaves_nothing_fails_its_request_alone_with_its_field(bench: Bench) -> None:
    bench.submit(1, "say a", grammar='start: "a"', sampling=Sampling(logit_bias={97: -100.0}))
    bench.submit(2, "say b")
    run(bench, 1, 2)
    (end,) = bench.ends(1)
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.param) == ("invalid_value", "logit_bias")
    assert bench.text(2) == "b"


# how much is produced


def test_a_prompt_may_be_read_and_not_answered(bench: Bench) -> None:
    bench.submit(1, "say hello" * 5, max_tokens=0)
    bench.run()
    accepted, end = bench.of(1)
    assert accepted == Accepted(1)
    assert isinstance(end, Finished)
    assert end.reason == FinishReason.LENGTH
    assert end.phases.prefill > 0
    assert end.phases.decode == 0


def test_an_answer_goes_on_up_to_its_least_tokens(bench: Bench) -> None:
    bench.submit(1, "say ab", min_tokens=5)
    bench.run()
    assert len(bench.text(1)) == 5
    assert bench.text(1).startswith("ab")
    assert bench.reason(1) == FinishReason.STOP


# log probabilities


def test_each_token_comes_with_its_log_probability(bench: Bench) -> None:
    bench.submit(1, "say ab", top_logprobs=1)
    bench.run()
    found = [message for _, message in bench.sent if isinstance(message, Tokens)]
    assert [len(message.logprobs) for message in found] == [1, 1]
    # the scripted logits are 10 for the token and 0 for the other 256
    expected = 10 - math.log(math.exp(10) + 256)
    for message in found:
        (logprob,) = message.logprobs
        assert logprob.logprob == pytest.approx(expected)
        assert logprob == TokenLogprob(message.tokens[0], logprob.logprob, [(message.tokens[0], logprob.logprob)])


def test_who_wants_no_log_probabilities_gets_none(bench: Bench) -> None:
    bench.submit(1, "say ab")
    bench.run()
    assert [message.logprobs for _, message in bench.sent if isinstance(message, Tokens)] == [[], []]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_the_prompts_log_probabilities_come_chunk_by_chunk_before_the_first_token(
    bench: Bench, max_tokens: int
) -> None:
    bench.submit(1, "say abcdefghijklmn", prompt_logprobs=True, max_tokens=max_tokens)
    bench.run()
    kinds = [type(message) for message in bench.of(1)]
    first = kinds.index(Tokens) if max_tokens else len(kinds) - 1
    assert set(kinds[1:first]) == {PromptLogprobs}
    assert first > 2
    told = [logprob for message in bench.of(1) if isinstance(message, PromptLogprobs) for logprob in message.logprobs]
    assert [logprob.token for logprob in told] == list(b"ay abcdefghijklmn\n\x04")
    assert all(logprob.logprob == pytest.approx(-math.log(257)) for logprob in told)


def test_a_prompt_that_a_profile_makes_read_anew_is_told_once(bench: Bench) -> None:
    bench.submit(1, "say ab" + "c" * 20, prompt_logprobs=True, max_tokens=3)
    bench.steps(2)
    bench.inbox.put((API, SetRuntimeOption(7, "enable_profiling", "p", "r1")))
    bench.run()
    told = [logprob for message in bench.of(1) if isinstance(message, PromptLogprobs) for logprob in message.logprobs]
    assert [logprob.token for logprob in told] == list(b"ay ab" + b"c" * 20 + b"\n\x04")


def test_a_prompt_with_a_token_that_the_model_has_not_is_refused(bench: Bench) -> None:
    size = bench.loop._model.vocab_size
    bench.inbox.put((API, Submit(1, GenerationRequest("r1", [1, size, 2], 5, 100))))
    bench.steps(1)
    (refused,) = bench.of(1)
    assert isinstance(refused, Refused)
    assert refused.error.param == "prompt"
    assert f"token {size} is not among the model's {size}" in refused.error.message
