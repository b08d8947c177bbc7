"""What earlier messages have that this server's messages do not is read as text, or left out, and named."""

from typing import Any

import httpx
import pytest

from genai_server.apis.shared.chat_history import HISTORY, convert_messages
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, history_of
from tests.http.test_leniency import strict  # noqa: F401 - a fixture
from tests.running_server import RunningServer

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
FILE = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}}
USER = {"role": "user", "content": "say hi"}
LEFT_OUT = "[image left out: this model reads text only]"


def _history(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*messages, dict(USER)]}


def test_history_is_everything_but_the_last_message_of_the_user() -> None:
    first, answer, last = {"role": "user"}, {"role": "assistant"}, {"role": "user"}
    result = {"role": "tool"}
    assert history_of({"messages": [first, answer, last, result]}, "messages") == {
        "messages": [first, answer, {}, result]
    }
    assert history_of({"messages": [answer]}, "messages") == {"messages": [answer]}
    assert history_of({"messages": "x"}, "messages") == history_of([], "messages") == {}


def test_a_refusal_is_the_content_of_its_message() -> None:
    body = _history({"role": "assistant", "content": None, "refusal": "No."})
    assert convert_messages(body) == ["messages[0].refusal (as content)"]
    assert body["messages"][0] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize(
    ("content", "expected"),
    [("So:", "So:\nNo."), ([{"type": "text", "text": "So:"}], [{"type": "text", "text": t} for t in ("So:", "No.")])],
)
def test_a_refusal_follows_other_content(content: Any, expected: Any) -> None:
    body = _history({"role": "assistant", "content": content, "refusal": "No."})
    convert_messages(body)
    assert body["messages"][0]["content"] == expected


def test_an_empty_refusal_is_not_named() -> None:
    assert convert_messages(_history({"role": "assistant", "content": "x", "refusal": ""})) == []


def test_the_transcript_of_a_spoken_answer_is_its_content() -> None:
    audio = {"id": "audio_1", "data": "AA==", "expires_at": 1, "transcript": "Hello."}
    body = _history({"role": "assistant", "content": None, "audio": audio})
    assert convert_messages(body) == ["messages[0].audio (its transcript as content)"]
    assert body["messages"][0] == {"role": "assistant", "content": "Hello."}


def test_what_has_no_text_is_left_out() -> None:
    cited = [{"type": "url_citation", "url_citation": {"url": "https://a.example"}}]
    body = _history(
        {"role": "assistant", "content": "x", "annotations": []},
        {"role": "assistant", "content": "x", "annotations": cited, "audio": {"id": "audio_1"}},
    )
    assert HISTORY.remove_from(body) == ["messages[1].annotations", "messages[1].audio"]
    assert body["messages"][1] == {"role": "assistant", "content": "x"}


def test_parts_of_unknown_types_are_read_as_text() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}
    body = _history(
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, thinking]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"role": "user", "content": [{"type": "a\r\nb", "x": 1}]},
    )
    assert convert_messages(body) == [
        "messages[0].content[0] (refusal as text)",
        "messages[0].content[1] (thinking as text)",
        "messages[1].content[0] (output_text as text)",
        "messages[2].content[0] (a part as text)",
    ]
    texts = [part["text"] for message in body["messages"][:3] for part in message["content"]]
    assert texts == ["No.", "[thinking]\nthinking: so", "a", "[a\r\nb]\nx: 1"]


def test_parts_of_the_last_message_are_left_for_validation() -> None:
    body: Any = {"messages": [{"role": "user", "content": [{"type": "x"}, dict(FILE)]}]}
    assert convert_messages(body) == HISTORY.remove_from(body) == []
    assert body["messages"][0]["content"] == [{"type": "x"}, FILE]


@pytest.mark.parametrize("body", [[], {}, {"messages": None}, {"messages": ["x", {"content": 5}]}])
def test_bodies_of_other_forms_are_left_as_they_are(body: Any) -> None:
    assert convert_messages(body) == HISTORY.remove_from(body) == []


def _chat(server: RunningServer, path: str, *messages: dict[str, Any]) -> httpx.Response:
    return server.client.post(path, json=_history(*messages))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat", "/tokenize"])
@pytest.mark.parametrize(("part", "name"), [(IMAGE, "image"), (FILE, "file")], ids=["image", "file"])
def test_earlier_media_are_notes(scripted: RunningServer, path: str, part: dict[str, Any], name: str) -> None:
    for message in ({"role": "user", "content": [part]}, {"role": "tool", "tool_call_id": "1", "content": [part]}):
        response = _chat(scripted, path, message)
        assert response.status_code == 200, response.text
        assert response.headers[IGNORED_HEADER] == f"messages[0].content[0] ({name})"


@pytest.mark.parametrize("part", [IMAGE, FILE], ids=["image", "file"])
def test_media_that_are_asked_about_are_refused_if_strict(scripted: RunningServer, part: dict[str, Any]) -> None:
    asked = {"messages": [USER, {"role": "user", "content": [part]}]}
    response = scripted.client.post("/v1/chat", json=asked)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages[1].content[0]")


def test_a_strict_server_leaves_nothing_out_but_reads_texts(strict: RunningServer) -> None:  # noqa: F811
    path = "/v1/chat/completions"
    response = _chat(strict, path, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})
    assert (response.status_code, response.headers[CONVERTED_HEADER]) == (
        200,
        "messages[0].content[0] (refusal as text)",
    )
    for part in (IMAGE, FILE):
        assert _chat(strict, path, {"role": "user", "content": [part]}).status_code == 400


def test_the_prompt_has_the_texts(scripted: RunningServer) -> None:
    response = _chat(
        scripted,
        "/apply-template",
        {"role": "assistant", "content": None, "refusal": "I refuse."},
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://a.example/b"}}]},
    )
    assert response.status_code == 200
    assert "I refuse." in response.json()["prompt"]
    assert 'video_url: {"url": "https://a.example/b"}' in response.json()["prompt"]
    assert response.headers[CONVERTED_HEADER] == (
        "messages[1].content[0] (video_url as text), messages[0].refusal (as content)"
    )


@pytest.mark.parametrize(
    "arguments", ["", '{"city": ', "[1]", "null", "Paris", '{"a": NaN}', '{"a": 1e999}', r'{"a": "\ud800"}', "[" * 1200]
)
def test_earlier_calls_may_have_any_arguments(scripted: RunningServer, arguments: str) -> None:
    function = {"name": "f", "arguments": arguments}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "r"}
    for path in ("/v1/chat/completions", "/v1/chat", "/apply-template", "/tokenize"):
        response = _chat(scripted, path, USER, call, result)
        assert response.status_code == 200, response.text
    given = {"type": "function_call", "call_id": "1", **function}
    output = {"type": "function_call_output", "call_id": "1", "output": "r"}
    response = scripted.client.post("/v1/responses", json={"input": [USER, given, output, USER]})
    assert response.status_code == 200, response.text
