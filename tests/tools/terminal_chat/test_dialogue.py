"""Images in the dialogue, as the command sends them to a server that lists two models."""

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.running_server import RunningServer, clean_environment, run_command

PNG = b"\x89PNG\r\n\x1a\n rest"
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}}
REFUSED = "refuse this"


class Server(ThreadingHTTPServer):
    """Answers each chat with one word and keeps the messages; refuses those that say so."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[list[dict[str, Any]]] = []
        self.models: list[dict[str, Any]] = [
            {"id": "sees", "capabilities": ["completion", "vision"]},
            {"id": "reads", "capabilities": ["completion"]},
            {"id": "later", "state": "unloaded"},
        ]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": self.server.models}))

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        self.server.asked.append(messages)
        if REFUSED in json.dumps(messages[-1]):
            self._send(400, json.dumps({"error": {"message": "messages[0].content[0]: no image"}}))
        else:
            self._send(200, f"data: {json.dumps({'choices': [{'delta': {'content': 'Fine.'}}]})}\n\ndata: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a cat.png"
    path.write_bytes(PNG)
    return path


def chat(server: Server, said: str, *options: str) -> tuple[int, str]:
    """Status and errors of the command."""
    done = run_command("chat", server.url, *options, environment=clean_environment(), said=said)
    return done.returncode, done.stderr


def questions(server: Server) -> list[Any]:
    return [messages[-1]["content"] for messages in server.asked]


def test_images_of_the_command_line_go_with_the_first_question(server: Server, picture: Path) -> None:
    status, errors = chat(server, "What?\nSure?\n", "--image", str(picture), "--image", str(picture))
    assert (status, "error" in errors) == (0, False), errors
    first = {"role": "user", "content": [PART, PART, {"type": "text", "text": "What?"}]}
    assert server.asked[0] == [first]
    assert server.asked[1] == [first, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Sure?"}]


def test_an_attached_image_goes_with_the_next_question_unless_it_is_forgotten(server: Server, picture: Path) -> None:
    said = f"Hello!\n/image {picture}\nWhat?\n/retry\nSure?\n/image {picture}\n/clear\nBye!\n"
    _, errors = chat(server, said)
    assert "error" not in errors
    pictured = [PART, {"type": "text", "text": "What?"}]
    assert questions(server) == ["Hello!", pictured, pictured, "Sure?", "Bye!"]
    assert server.asked[3][2]["content"] == pictured
    assert len(server.asked[4]) == 1


def test_a_wrong_file_is_reported_and_the_chat_continues(server: Server, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("text", encoding="utf-8")
    missing = "none.png cannot be read: No such file or directory"
    status, errors = chat(server, f"/image\n/image {tmp_path}/none.png\n/image {tmp_path}/notes.png\nHello!\n")
    wrong = "notes.png is not a PNG, JPEG, WebP, GIF or BMP image"
    assert [text for text in ("error: /image needs a FILE", missing, wrong) if text not in errors] == []
    assert (status, questions(server)) == (0, ["Hello!"])
    status, errors = chat(server, "Hello!\n", "--image", f"{tmp_path}/none.png")
    assert (status, "argument --image: " in errors, missing in errors) == (2, True, True)


def test_a_model_that_reads_text_only_gets_no_image(server: Server, picture: Path) -> None:
    refusal = "reads reads text only; models for images: sees, later"
    status, errors = chat(server, "What?\n", "--image", str(picture), "--model", "reads")
    assert (status, refusal in errors, server.asked) == (1, True, [])
    status, errors = chat(server, f"/image {picture}\nHello!\n", "--model", "reads")
    assert (status, refusal in errors, questions(server)) == (0, True, ["Hello!"])
    # Other servers do not list what a model reads.
    status, errors = chat(server, "What?\n", "--image", str(picture), "--model", "later")
    assert (status, "error" in errors) == (0, False), errors


def test_a_refused_image_is_reported_and_leaves_the_history(server: Server, picture: Path) -> None:
    status, errors = chat(server, f"{REFUSED}\nHello!\n", "--image", str(picture))
    assert (status, "error: 400: messages[0].content[0]: no image" in errors) == (0, True)
    assert server.asked[1] == [{"role": "user", "content": "Hello!"}]


def test_an_image_that_is_left_out_is_named(scripted: RunningServer, tmp_path: Path) -> None:
    """A saved chat may have images that its next model does not read."""
    saved = tmp_path / "chat.json"
    saved.write_text(
        json.dumps({"messages": [{"role": "user", "content": [PART, {"type": "text", "text": "say hi"}]}]})
    )
    done = run_command("chat", scripted.url, environment=clean_environment(), said=f"/load {saved}\n/retry\n")
    assert "[had no effect: messages[0].content[0] (image)]" in done.stderr.splitlines()
