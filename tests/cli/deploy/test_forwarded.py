"""What the ingress reads of a request."""

from genai_server.cli.deploy.forwarded import body_head, prompt_text, with_header


def _prompt(body: bytes) -> str:
    return prompt_text(body_head(body))


def test_a_prompt_is_its_texts_in_order_in_each_api() -> None:
    chat = b'{"messages": [{"role": "system", "content": "a"}, {"content": [{"type": "text", "text": "b"}]}]}'
    assert _prompt(chat) == "a\nb"
    assert _prompt(b'{"system": [{"type": "text", "text": "s"}], "messages": [{"content": "b"}]}') == "s\nb"
    assert _prompt(b'{"instructions": "i", "input": "x"}') == "i\nx"
    assert _prompt(b'{"prompt": ["p", "q"]}') == "p\nq"


def test_the_next_turn_begins_with_the_text_of_the_last() -> None:
    first = b'{"messages": [{"content": "a"}]}'
    second = b'{"messages": [{"content": "a"}, {"content": "b"}, {"content": "c"}]}'
    assert _prompt(second).startswith(_prompt(first))


def test_a_long_prompt_is_compared_by_its_beginning() -> None:
    assert len(_prompt(b'{"prompt": "%b"}' % (b"x" * 100_000))) == 16_384


def test_whatever_a_body_holds_it_is_left_to_the_replica() -> None:
    for body in (b"", b"{", b"[]", b'"x"', b"\xff", b'{"messages": 1, "model": []}', b"[" * 5_000):
        assert _prompt(body) == ""


def test_a_header_is_there_once() -> None:
    start = {"type": "http.response.start", "headers": [(b"A", b"1"), (b"b", b"2")]}
    assert with_header(start, "a", "3")["headers"] == [(b"b", b"2"), (b"a", b"3")]
    assert with_header(start, "a", "")["headers"] == [(b"b", b"2")]
