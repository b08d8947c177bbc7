"""Requests with grammars, biases, log probabilities or no tokens at all, from their arrival at the loop."""

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.api_connections import Disconnected
from genai_server.engine.encoder_worker import ImageWorker
from genai_server.messages.admin import SetRuntimeOption
from genai_server.messages.engine_protocol import Accepted, Cancel, Finished, Load, PromptLogprobs, Tokens
from genai_server.messages.generation_request import FinishReason, Image, Sampling, TokenLogprob
from tests.engine.bench import Bench, nothing_compiles
from tests.engine.sampling.grammars import AMBIGUOUS
from tests.stepped_loop import OTHER_API


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, max_running=2, max_waiting=1)


# groups


def test_group_of_requests_is_admitted_when_complete(bench: Bench) -> None:
    bench.submit(1, "say a", more=True)
    bench.submit(2, "say b", more=True)
    bench.submit(7, "say c", connection=OTHER_API)
    bench.run()
    assert bench.of(1) == bench.of(2) == []
    assert bench.text(7) == "c"
    bench.sent.clear()
    bench.answer(3, "say d")
    kinds = [type(message) for _, message in bench.sent if not isinstance(message, Load)]
    assert kinds[:3] == [Accepted] * 3
    assert [bench.text(key) for key in (1, 2, 3)] == ["a", "b", "d"]


def test_group_without_capacity_for_one_is_refused(bench: Bench) -> None:
    keys = range(1, 5)
    for key in keys:
        bench.submit(key, "say a", more=key < 4)
    bench.steps(1)
    assert {bench.refusal(key).code for key in keys} == {"queue_full"}
    assert bench.scheduler.is_idle
    assert bench.answer(5, "say b") == "b"


def test_invalid_request_cancels_the_grammars_of_its_group(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"', more=True)
        bench.submit(2, "say a", sampling=Sampling(logit_bias={999: 1.0}))
        bench.steps(1)
        assert [bench.refusal(key).param for key in (1, 2)] == ["logit_bias"] * 2
        assert len(bench.loop._requests) == 0
    bench.step_until(lambda: bool(bench.loop._admission._guidance._kept))
    assert len(bench.of(1)) == 1


def test_incomplete_group_is_dropped_with_its_connection(bench: Bench) -> None:
    bench.submit(1, "say a", more=True, connection=OTHER_API)
    bench.put(Disconnected(), OTHER_API)
    assert bench.answer(2, "say b", connection=OTHER_API) == "b"
    assert bench.of(1) == []


# grammars


def test_request_is_accepted_once_its_grammar_is_compiled(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say b12; it goes on", grammar="start: /[a-c][0-9]{2}/")
        bench.steps(1)
        assert bench.of(1) == []
    bench.run(1)
    assert bench.kinds(1) == [Accepted, Tokens, Finished]
    assert (bench.text(1), bench.reason(1)) == ("b12", FinishReason.STOP)


@pytest.mark.parametrize(
    ("grammar", "needs_grammar"), [('start: "a"', True), ("start: (", False)], ids=["required", "invalid and optional"]
)
def test_a_grammar_that_another_key_has_used_is_compiled_again(
    bench: Bench, grammar: str, *, needs_grammar: bool
) -> None:
    fields: dict[str, Any] = {"grammar": grammar, "needs_grammar": needs_grammar}
    bench.submit(1, "say a", tenant="alice", **fields)
    bench.run(1)
    with nothing_compiles(bench):
        bench.submit(2, "say a", tenant="bob", **fields)
        bench.submit(3, "say a", tenant="alice", **fields)
        bench.run(3)
        assert bench.of(2) == []
    bench.run(2)
    assert [bench.text(key) for key in (1, 2, 3)] == ["a"] * 3


def test_a_wrong_grammar_is_refused_with_its_field(bench: Bench) -> None:
    bench.submit(1, "say a", grammar="start: (")
    bench.run(1)
    refused = bench.refusal(1)
    assert (refused.code, refused.param) == ("invalid_value", "grammar")
    assert "Expected token" in refused.message
    assert bench.scheduler.is_idle


def test_optional_grammar_that_fails_does_not_end_the_answer(bench: Bench) -> None:
    # For other requests it fails at the 90th token. The answer is cut off later, and not because the grammar ends.
    bench.submit(1, "say " + "x" * 200, grammar=AMBIGUOUS, needs_grammar=False, max_tokens=150)
    bench.submit(2, "say a", grammar="start: (", needs_grammar=False)
    bench.run(1, 2)
    bench.submit(3, "say b", grammar="start: (", needs_grammar=False)  # known to be invalid by now
    bench.run(3)
    assert [bench.text(key) for key in (1, 2, 3)] == ["x" * 150, "a", "b"]
    assert [bench.reason(key) for key in (1, 2, 3)] == [FinishReason.LENGTH, FinishReason.STOP, FinishReason.STOP]


def test_client_gone_during_compilation_gets_no_answer(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"')
        bench.submit(2, "say a", grammar='start: "b"', connection=OTHER_API)
        bench.put(Cancel(1))
        bench.put(Disconnected(), OTHER_API)
        bench.submit(3, "say c", grammar='start: "c"')
        bench.steps(1)
    bench.run(3)
    assert bench.text(3) == "c"
    assert bench.of(1) == bench.of(2) == []


def test_request_holds_its_place_during_compilation(bench: Bench) -> None:
    with nothing_compiles(bench):
        for key in (1, 2, 3):
            bench.submit(key, "say a", grammar='start: "a"')
        bench.submit(4, "say a")
        bench.steps(1)
        assert bench.refusal(4).code == "queue_full"
    bench.run(1, 2, 3)
    assert [bench.text(key) for key in (1, 2, 3)] == ["a"] * 3


def test_device_terminated_during_compilation_refuses(bench: Bench) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"')
        bench.put(SetRuntimeOption(7, "terminate_session", "1"))
        bench.steps(1)
    bench.run(1)
    refused = bench.refusal(1)
    assert (refused.code, refused.retry_after) == ("session_terminated", None)  # until the operator decides otherwise


# biases


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"sampling": Sampling(logit_bias={5: 1.0, -1: 1.0})}, "logit_bias", "must have tokens below 257; given -1"),
        ({"sampling": Sampling(logit_bias={5: 1.0, 257: 1.0})}, "logit_bias", "must have tokens below 257; given 257"),
        ({"sampling": Sampling(bad_words=[[97, 257]])}, "bad_words", ""),
        ({"sampling": Sampling(bad_words=[[97], []])}, "bad_words", ""),
        ({"sampling": Sampling(allowed_tokens=bytes(32))}, "allowed_token_ids", ""),
        ({"prompt": [1, 257, 2]}, "prompt", "must have tokens below 257; given 257"),
        ({"prediction": [257]}, "prediction", "must have tokens below 257; given 257"),
    ],
)
def test_tokens_of_another_vocabulary_are_refused_with_their_field(
    bench: Bench, fields: dict[str, Any], param: str, words: str
) -> None:
    given: dict[str, Any] = {"prompt": [7], "max_tokens": 5, "max_length": 100}
    bench.put_request(1, **given | fields)
    bench.steps(1)
    assert (bench.refusal(1).code, bench.refusal(1).param) == ("invalid_value", param)
    assert words in bench.refusal(1).message


def test_exclusion_of_every_token_fails_one_request_and_names_the_fields(bench: Bench) -> None:
    sampling = Sampling(allowed_tokens=bytes([0] * 12 + [2] + [0] * 20), bad_words=[[97, 97]])
    bench.submit(1, "say a", sampling=sampling)
    bench.submit(2, "say a", grammar='start: "a"', sampling=Sampling(logit_bias={97: -100.0}))
    bench.submit(3, "say b")
    bench.run(1, 2, 3)
    assert [bench.text(key) for key in (1, 2, 3)] == ["a", "", "b"]
    errors = [bench.failure(key) for key in (1, 2)]
    assert [(error.code, error.param) for error in errors] == [
        ("invalid_value", "allowed_token_ids"),
        ("invalid_value", "logit_bias"),
    ]
    assert "together with bad_words, grammar and min_tokens" in errors[0].message


# log probabilities


def test_logprobs_are_absent_unless_requested(bench: Bench) -> None:
    bench.answer(1, "say ab")
    assert [message.logprobs for message in bench.messages(Tokens)] == [[], []]


def prompt_scores(bench: Bench) -> list[TokenLogprob]:
    return [logprob for message in bench.messages(PromptLogprobs, 1) for logprob in message.logprobs]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_prompt_logprobs_precede_the_first_token_by_chunk(bench: Bench, max_tokens: int) -> None:
    bench.answer(1, "say abcdefghijklmn", prompt_logprobs=True, max_tokens=max_tokens)
    kinds = bench.kinds(1)
    first = kinds.index(Tokens) if max_tokens else len(kinds) - 1
    assert set(kinds[1:first]) == {PromptLogprobs}
    assert first > 2
    assert [logprob.token for logprob in prompt_scores(bench)] == list(b"ay abcdefghijklmn\n\x04")
    assert all(logprob.logprob == pytest.approx(-math.log(257)) for logprob in prompt_scores(bench))


def test_recomputed_prompt_logprobs_are_sent_once(bench: Bench) -> None:
    bench.submit(1, "say ab" + "c" * 20, prompt_logprobs=True, max_tokens=3)
    bench.steps(2)
    bench.put(SetRuntimeOption(7, "enable_profiling", "p", "r1"))
    bench.run()
    assert [logprob.token for logprob in prompt_scores(bench)] == list(b"ay ab" + b"c" * 20 + b"\n\x04")


# images


class ImageBench(Bench):
    """A bench whose model takes images of two features each; token 7 stands for them."""

    def __init__(self, folder: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.path = folder / "image.npz"
        np.savez(self.path, pixel_values=np.zeros((2, 4), np.float32))
        self.encoded = 0
        super().__init__(folder, max_running=2, max_waiting=1, encoder=ImageWorker(lambda: self._encode, 7, 1000))

    def _encode(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        assert self.gate.wait(60)
        self.encoded += 1
        return tensors["pixel_values"]

    def submit_image(self, key: int, script: str = "say a", **fields: Any) -> None:
        image = Image("digest", str(self.path), 0, 2)
        given: dict[str, Any] = {"max_tokens": 5, "max_length": 100, "images": [image]} | fields
        self.put_request(key, [7, 7, *f"{script}\n\x04".encode()], **given)


@pytest.fixture
def image_bench(tmp_path: Path) -> ImageBench:
    return ImageBench(tmp_path)


def test_answers_go_on_while_images_are_encoded(image_bench: ImageBench) -> None:
    image_bench.gate.clear()
    image_bench.submit_image(1)
    image_bench.submit(2, "say b")
    image_bench.step_until(lambda: Finished in image_bench.kinds(2))
    assert image_bench.text(2) == "b"
    assert image_bench.of(1) == []
    image_bench.gate.set()
    image_bench.run(1)
    assert image_bench.kinds(1)[0] is Accepted
    assert image_bench.reason(1) in (FinishReason.STOP, FinishReason.LENGTH)


def test_request_with_grammar_and_image_waits_for_both(image_bench: ImageBench) -> None:
    image_bench.gate.clear()
    image_bench.submit_image(1, "say a", grammar='start: "a"')
    image_bench.step_until(lambda: bool(image_bench.loop._admission._guidance._kept))
    image_bench.steps(2)
    assert image_bench.of(1) == []
    image_bench.gate.set()
    image_bench.run(1)
    assert image_bench.text(1) == "a"


def test_client_gone_during_encoding_gets_no_answer(image_bench: ImageBench) -> None:
    image_bench.gate.clear()
    image_bench.submit_image(1)
    image_bench.steps(1)
    image_bench.put(Cancel(1))
    image_bench.steps(1)
    image_bench.gate.set()
    image_bench.submit_image(2)
    image_bench.run(2)
    assert image_bench.of(1) == []
    assert image_bench.kinds(2)[-1] is Finished


def test_an_unreadable_image_refuses_its_request(image_bench: ImageBench) -> None:
    image_bench.submit_image(1, images=[Image("other", "nowhere.npz", 0, 2)])
    image_bench.step_until(lambda: bool(image_bench.of(1)))
    assert image_bench.refusal(1).code == "runner_failed"
    assert image_bench.answer(2, "say b") == "b"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"images": []}, "prompt"),
        ({"prediction": [1, 7]}, "prediction"),
        ({"sampling": Sampling(logit_bias={7: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(allowed_tokens=bytes([0x81] + [0] * 32))}, "allowed_token_ids"),
    ],
)
def test_tokens_of_images_stand_for_images_only(image_bench: ImageBench, fields: dict[str, Any], param: str) -> None:
    image_bench.submit_image(1, **fields)
    image_bench.steps(1)
    assert image_bench.refusal(1).param == param


def test_a_text_model_refuses_images(bench: Bench) -> None:
    bench.put_request(1, [7, 7, 8], max_tokens=5, max_length=100, images=[Image("digest", "file", 0, 2)])
    bench.steps(1)
    assert bench.refusal(1).param == "images"
