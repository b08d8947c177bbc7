"""Text completions as OpenAI's client parses them."""

from openai.types import Completion

from genai_server.answer_parts import Content, ScoredToken, WholeAnswer
from genai_server.apis.completions.routes import CompletionBuilder
from genai_server.generation.answers import Ending
from genai_server.http.telemetry.usage import Usage
from genai_server.messages.generation_request import FinishReason

TOKENS = [
    ScoredToken(b"The", None, offset=0),
    ScoredToken(b" end", -0.5, (ScoredToken(b" end", -0.5), ScoredToken(b" sun", -0.9)), offset=3),
]


def _answer(text: str, tokens: list[ScoredToken]) -> WholeAnswer:
    answer = WholeAnswer(tokens=tokens)
    answer.add(Content(text))
    return answer


def test_a_whole_answer_is_one_of_openais() -> None:
    build = CompletionBuilder("id1", "m", 1234, has_logprobs=True)
    choice = build.choice(0, _answer("The end", TOKENS), Ending(FinishReason.LENGTH))
    # OpenAI's client does the same: the API sends null for the first token although the client's types exclude it.
    read = Completion.construct(**build.complete([choice], Usage(1, 1)))
    assert (read.id, read.model, read.created, read.object) == ("id1", "m", 1234, "text_completion")
    assert (read.choices[0].text, read.choices[0].finish_reason) == ("The end", "length")
    scores = read.choices[0].logprobs
    assert scores is not None
    assert (scores.tokens, scores.token_logprobs, scores.text_offset) == (["The", " end"], [None, -0.5], [0, 3])
    assert scores.top_logprobs == [None, {" end": -0.5, " sun": -0.9}]


def test_logprobs_are_absent_unless_requested() -> None:
    build = CompletionBuilder("id1", "m", 1234)
    assert build.choice(0, _answer("x", TOKENS), None)["logprobs"] is None


def test_more_likely_of_two_tokens_with_one_text_is_returned() -> None:
    top = (ScoredToken(b"\xc3", -0.1), ScoredToken(b"\xc4", -3.0))
    build = CompletionBuilder("id1", "m", 1234, has_logprobs=True)
    choice = build.choice(0, _answer("x", [ScoredToken(b"\xc3", -0.1, top)]), None)
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -0.1}]


def test_chunks_have_usage_on_request() -> None:
    build = CompletionBuilder("id1", "m", 1234, has_usage=True)
    assert build.part(0, [Content("x")], [])["usage"] is None
    assert build.usage(Usage(1, 2))["usage"]["total_tokens"] == 3
    assert "usage" not in CompletionBuilder("id1", "m", 1234).part(0, [Content("x")], [])
