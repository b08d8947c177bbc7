"""Text completions as OpenAI's client parses them."""

from genai_server.answer_parts import Content, ScoredToken, WholeAnswer
from genai_server.apis.completions.routes import CompletionBuilder

TOKENS = [
    ScoredToken(b"The", None, offset=0),
    ScoredToken(b" end", -0.5, (ScoredToken(b" end", -0.5), ScoredToken(b" sun", -0.9)), offset=3),
]


def _answer(text: str, tokens: list[ScoredToken]) -> WholeAnswer:
    answer = WholeAnswer(tokens=tokens)
    answer.add(Content(text))
    return answer


def test_logprobs_are_absent_unless_requested() -> None:
    build = CompletionBuilder("id1", "m", 1234)
    assert build.choice(0, _answer("x", TOKENS), None)["logprobs"] is None


def test_more_likely_of_two_tokens_with_one_text_is_returned() -> None:
    top = (ScoredToken(b"\xc3", -0.1), ScoredToken(b"\xc4", -3.0))
    build = CompletionBuilder("id1", "m", 1234, has_logprobs=True)
    choice = build.choice(0, _answer("x", [ScoredToken(b"\xc3", -0.1, top)]), None)
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -0.1}]
