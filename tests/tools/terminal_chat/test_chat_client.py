"""The chat's client, over real sockets."""

import re

import pytest

from genai_server.answer_parts import Content
from genai_server.errors import ChatFailed, ServerUnusable
from genai_server.tools.terminal_chat.chat_client import Answer, ChatClient
from genai_server.tools.terminal_chat.chat_history import Message
from tests.running_server import RunningServer, free_port, wait_until


def messages(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_an_answer_comes_in_pieces_and_is_counted_by_the_server(scripted: RunningServer) -> None:
    client = ChatClient(scripted.url)
    answer = Answer()
    found = client.answer(next(iter(client.models())), messages("count 9; delay 0.02"), answer)
    pieces = [piece.text for piece in found if isinstance(piece, Content)]
    assert len(pieces) > 1
    assert "".join(pieces) == answer.text == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert answer.is_counted
    assert re.match(rf"{answer.tokens} tokens, first after \d+\.\d\d s", answer.took())


def test_closing_the_pieces_ends_the_answer(scripted: RunningServer) -> None:
    client = ChatClient(scripted.url + "/v1/")
    pieces = client.answer(next(iter(client.models())), messages("count 500; delay 0.05"), Answer())
    next(pieces)
    pieces.close()
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


@pytest.mark.parametrize("text", ["127.0.0.1:8002", "localhost:8002/v1", "[::1]:8002"])
def test_an_address_without_a_scheme_is_one_of_http(text: str) -> None:
    assert ChatClient(text).url == f"http://{text}"


def test_unreachable_server_is_named() -> None:
    client = ChatClient(f"http://127.0.0.1:{free_port()}")
    for ask in (client.require_listening, client.models):
        with pytest.raises(ChatFailed, match=f"^no server at {client.url}; start one with genai-server serve$"):
            ask()


@pytest.mark.parametrize(
    ("url", "key", "words"),
    [
        *(
            (url, None, "is not the address of a server")
            for url in ("ftp://x", "http://", "127.0.0.1", "127.0.0.1:x", "http://a..b", "http://a/ b", "http://a/\n")
        ),
        ("http://127.0.0.1:8002", "schlüssel", "--api-key has characters that no API key has"),
        ("http://127.0.0.1:8002", "two\nlines", "--api-key has characters that no API key has"),
    ],
)
def test_invalid_address_or_key_is_refused(url: str, key: str | None, words: str) -> None:
    with pytest.raises(ServerUnusable, match=words):
        ChatClient(url, key)


@pytest.mark.parametrize(
    ("seconds", "rate"), [(0.0, ""), (0.0001, ""), (0.5, "then 8.0 a second, "), (2.0, "then 2.0 a second, ")]
)
def test_rate_needs_a_measurable_time(seconds: float, rate: str) -> None:
    assert Answer().took() == "no output"
    answer = Answer(sent=10.0, tokens=5, first=10.5, last=10.5 + seconds, is_counted=True)
    assert answer.took() == f"5 tokens, first after 0.50 s, {rate}{0.5 + seconds:.2f} s in all"
