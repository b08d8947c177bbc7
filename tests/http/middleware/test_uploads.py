"""Bodies with a file: where they go, their limits, and what is left of them."""

import asyncio
import contextlib
import errno
import io
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from genai_server.http.api_keys import Access
from genai_server.http.body_budget import BodyBudget
from genai_server.http.middleware.body import BodyLimits, UploadLimits, Uploads, upload_folder
from genai_server.http.request_state import request_state, start_request
from genai_server.http.upload import Upload
from tests.apis.transcriptions.doubles import DIRECTORY
from tests.hand_clock import HandClock
from tests.http.test_upload import BODY, SOUND, TYPE, form, part
from tests.raw_http import answers, connect, read_to_end
from tests.running_server import RunningServer, wait_until
from tests.server_here import module_server

pytestmark = pytest.mark.anyio
PATH = "/v1/audio/transcriptions"
LIMIT = 1_000_000


def left(folder: Path) -> list[int]:
    """The sizes of the files in a folder."""
    return [path.stat().st_size for path in folder.iterdir()]


class App:
    """Notes what it gets, and waits for `goes_on`."""

    def __init__(self) -> None:
        self.upload: Upload | None = None
        self.content = b""
        self.body = b"?"
        self.has_begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.upload = request_state(scope).upload
        assert self.upload is not None
        self.content = self.upload.file.read_bytes() if self.upload.file else b""
        self.body = (await receive())["body"]
        self.has_begun.set()
        await self.goes_on.wait()


class Asked:
    """A request whose body comes in parts; None leaves."""

    def __init__(self, *parts: bytes | None, headers: dict[str, str] | None = None) -> None:
        self.sent: list[Message] = []
        self.taken = 0
        self._parts = parts
        given = TYPE | (headers or {})
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "state": {},
        }
        start_request(self.scope)

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if self.taken == len(self._parts):
            await asyncio.Event().wait()
        part = self._parts[self.taken]
        self.taken += 1
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": self.taken < len(self._parts)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and body of the response."""
        return self.sent[0]["status"], self.sent[1]["body"].decode()

    @property
    def closes(self) -> bool:
        """Whether the response says that its connection is closed."""
        return (b"connection", b"close") in self.sent[0]["headers"]


def uploads(
    folder: Path, *, limit: int = LIMIT, seconds: float = 20, whole_seconds: float = 600, total: int = 10_000_000
) -> Uploads:
    return Uploads(
        [PATH],
        ["https://app.example"],
        UploadLimits(limit, "GENAI_MAX_AUDIO_BODY_BYTES", seconds, whole_seconds),
        BodyBudget(total, "GENAI_MAX_AUDIO_BODIES_BYTES"),
        lambda: folder,
    )


async def ask(reader: Uploads, asked: Asked, app: App | None = None) -> App:
    app = app or App()
    await reader.pass_on(app, asked.scope, asked.receive, asked.send)
    return app


async def refusal(reader: Uploads, asked: Asked) -> tuple[int, str]:
    """Status and body of the response to an upload that does not reach the app."""
    assert (await ask(reader, asked)).upload is None
    return asked.refusal


async def test_only_posts_to_the_paths_are_taken(tmp_path: Path) -> None:
    reached = list[str]()

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"] if request_state(scope).upload is None else "uploaded")

    limits = BodyLimits(note, LIMIT, 5.0, BodyBudget(LIMIT), others=[uploads(tmp_path)])
    for method, path, body in (("GET", PATH, b"{}"), ("POST", "/v1/chat", b"{}"), ("POST", PATH, BODY)):
        asked = Asked(body)
        await limits({**asked.scope, "method": method, "path": path}, asked.receive, asked.send)
    assert reached == [PATH, "/v1/chat", "uploaded"]


async def test_file_exists_while_the_request_runs(tmp_path: Path) -> None:
    app = await ask(uploads(tmp_path), Asked(BODY[:300], BODY[300:]))
    assert app.upload is not None
    assert (app.content, app.body) == (SOUND, b"")
    assert [name for name, _ in app.upload.fields] == ["model", "include[]", "prompt"]
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("origin", "site", "is_taken"),
    [
        ("https://other.example", "cross-site", False),
        ("http://127.0.0.1:3000", "same-site", False),
        ("https://app.example", "cross-site", True),
        ("https://own.example", "same-origin", True),
    ],
)
async def test_a_form_of_another_web_page_is_refused(tmp_path: Path, origin: str, site: str, is_taken: bool) -> None:
    asked = Asked(BODY)
    asked.scope["headers"] += [(b"origin", origin.encode()), (b"sec-fetch-site", site.encode())]
    app = await ask(uploads(tmp_path), asked)
    assert (app.upload is not None) == is_taken
    if not is_taken:
        assert asked.refusal[0] == 403
        assert "origin_forbidden" in asked.refusal[1]
    assert left(tmp_path) == []


async def test_large_file_is_on_disk_before_its_end_arrives(tmp_path: Path) -> None:
    class Watched(Asked):
        sizes: list[int] = []

        async def receive(self) -> Message:
            self.sizes.append(sum(left(tmp_path)))
            return await super().receive()

    body = form(part("file", bytes(900_000), file=True))
    asked = Watched(*(body[start : start + 60_000] for start in range(0, len(body), 60_000)))
    app = await ask(uploads(tmp_path), asked)
    assert len(app.content) == 900_000
    assert max(asked.sizes) >= 500_000


async def test_a_file_that_was_taken_away_is_not_missed(tmp_path: Path) -> None:
    class Taking(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            assert self.upload is not None
            assert self.upload.file is not None
            self.upload.file.unlink()

    await ask(uploads(tmp_path), Asked(BODY), Taking())


async def test_a_client_that_leaves_gets_no_response(tmp_path: Path) -> None:
    asked = Asked(BODY[:400], None)
    app = await ask(uploads(tmp_path), asked)
    assert (app.upload, asked.sent) == (None, [])
    assert left(tmp_path) == []


async def test_a_body_that_grows_too_large_is_dropped_and_a_wrong_form_is_read_to_its_end(tmp_path: Path) -> None:
    asked = Asked(BODY[:300], *[bytes(100_000)] * 40)
    said = f"at most {LIMIT} bytes (GENAI_MAX_AUDIO_BODY_BYTES), given more than 1000300"
    assert said in (await refusal(uploads(tmp_path), asked))[1]
    assert (asked.taken, asked.closes) == (21, True)  # it is read on, but not for ever
    asked = Asked(b"{", b'"a": 1', b"}")
    assert "invalid_form" in (await refusal(uploads(tmp_path), asked))[1]
    assert (asked.taken, asked.closes, left(tmp_path)) == (3, False, [])


async def test_all_uploads_together_have_a_limit(tmp_path: Path) -> None:
    reader = uploads(tmp_path, total=len(BODY) + 10)
    app = App()
    app.goes_on.clear()
    first = asyncio.create_task(ask(reader, Asked(BODY), app))
    await app.has_begun.wait()
    status, said = await refusal(reader, Asked(BODY))
    assert (status, "GENAI_MAX_AUDIO_BODIES_BYTES" in said) == (503, True)
    app.goes_on.set()
    await first
    assert (await ask(reader, Asked(BODY))).content == SOUND


async def test_a_body_that_stops_is_refused(tmp_path: Path) -> None:
    class Stalled(Asked):
        async def receive(self) -> Message:
            return {**await super().receive(), "more_body": True}

    status, said = await refusal(uploads(tmp_path, seconds=0.3), Stalled(BODY[:400]))
    assert (status, left(tmp_path)) == (408, [])
    assert "each MiB of the body must come within 0.3 seconds (GENAI_BODY_TIMEOUT); 400 bytes" in said


async def test_each_mebibyte_and_the_upload_have_time_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each MiB comes 15 seconds after the one before it, by the hand of a clock."""
    clock, deadlines = HandClock(), list[float]()

    @contextlib.asynccontextmanager
    async def timeout_at(deadline: float) -> AsyncIterator[Any]:
        deadlines.append(deadline)
        yield SimpleNamespace(reschedule=deadlines.append)

    class Slow(Asked):
        async def receive(self) -> Message:
            clock.wait(5)
            return await super().receive()

    monkeypatch.setattr(asyncio, "timeout_at", timeout_at)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    began = clock.now
    body = form(part("file", bytes(4_500_000), file=True))
    asked = Slow(*(body[start : start + 400_000] for start in range(0, len(body), 400_000)))
    app = await ask(uploads(tmp_path, limit=10_000_000, seconds=20, whole_seconds=60), asked)
    assert len(app.content) == 4_500_000
    assert [deadline - began for deadline in deadlines] == [20, 35, 50, 60]


async def test_an_upload_that_never_ends_is_refused(tmp_path: Path) -> None:
    class Endless(Asked):
        async def receive(self) -> Message:
            if self.taken == len(self._parts):
                await asyncio.Event().wait()
            return {**await super().receive(), "more_body": True}

    body = form(part("file", bytes(3_000_000), file=True))
    asked = Endless(*(body[start : start + 400_000] for start in range(0, len(body), 400_000)))
    await ask(uploads(tmp_path, limit=10_000_000, whole_seconds=0.3), asked)
    assert asked.refusal[0] == 408
    assert "the body must come within 0.3 seconds (GENAI_UPLOAD_TIMEOUT); " in asked.refusal[1]
    assert left(tmp_path) == []


async def test_another_keys_upload_takes_back_its_share_with_the_disk_space(tmp_path: Path) -> None:
    class Stopping(Asked):
        """Sends its last part only when `goes_on` is set."""

        def __init__(self, *parts: bytes) -> None:
            super().__init__(*parts)
            request_state(self.scope).access = Access(digest=b"alice")
            self.has_stopped, self.goes_on = asyncio.Event(), asyncio.Event()

        async def receive(self) -> Message:
            if self.taken == len(self._parts) - 1:
                self.has_stopped.set()
                await self.goes_on.wait()
            return await super().receive()

    reader, body = uploads(tmp_path, total=2_000_000), form(part("file", bytes(900_000), file=True))
    stopping = [Stopping(body[:-10], body[-10:]) for _ in range(2)]
    asking = []
    for asked in stopping:
        asking.append(asyncio.create_task(ask(reader, asked)))
        await asked.has_stopped.wait()
    assert len([size for size in left(tmp_path) if size > 500_000]) == 2
    bobs = Asked(body)
    request_state(bobs.scope).access = Access(digest=b"bob")
    assert len((await ask(reader, bobs)).content) == 900_000
    await asyncio.to_thread(wait_until, lambda: len([size for size in left(tmp_path) if size > 500_000]) == 1)
    for asked in stopping:
        asked.goes_on.set()
    first, second = await asyncio.gather(*asking)
    assert len(first.content) == 900_000
    assert second.upload is None
    assert stopping[1].refusal[0] == 503
    assert "another API key needed its share of 1000000 while this one held more" in stopping[1].refusal[1]
    assert left(tmp_path) == []


async def test_a_folder_that_cannot_be_written_is_a_503(tmp_path: Path) -> None:
    status, said = await refusal(uploads(tmp_path / "missing"), Asked(BODY))
    assert (status, "upload_unavailable" in said) == (503, True)
    assert "cannot be written: No such file or directory" in said


class FullDisk(io.RawIOBase):
    """A file that cannot be written."""

    def writable(self) -> bool:
        return True

    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("size", [1000, 300_000])
async def test_a_full_disk_is_a_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def on_full_disk(**_: Any) -> Any:
        path, file = tmp_path / "upload", io.BufferedWriter(FullDisk())
        path.touch()
        return SimpleNamespace(name=str(path), file=file, close=file.close)

    body = form(part("file", bytes(size), file=True))
    reader = uploads(tmp_path, total=len(body) + 10)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "NamedTemporaryFile", on_full_disk)
        status, said = await refusal(reader, Asked(body[:900], body[900:]))
    assert (status, "cannot be written: No space left on device" in said, left(tmp_path)) == (503, True, [])
    # Nothing of it counts any more.
    assert len((await ask(reader, Asked(body))).content) == size


def test_the_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    with upload_folder(tmp_path) as folder:
        (folder / "a").write_text("x")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert left(tmp_path) == []


_LIMITS = {"GENAI_MAX_AUDIO_BODY_BYTES": str(LIMIT), "GENAI_MAX_BODY_BYTES": "10000"}
server = module_server("--model-dir", str(DIRECTORY), **_LIMITS)


def head(size: int, *more: str) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "host: localhost", f"content-type: {TYPE['content-type']}", *more]
    return "\r\n".join([*lines, f"content-length: {size}", "", ""]).encode()


def test_a_client_that_waits_is_told_to_continue_unless_its_body_is_too_large(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.sendall(head(2 * LIMIT, "expect: 100-continue"))
        (answer,) = answers(read_to_end(connection))
    assert (answer.status, answer.headers["connection"]) == (400, ["close"])
    assert b"GENAI_MAX_AUDIO_BODY_BYTES" in answer.body
    body = form(part("file", b"no sound", file=True))
    with connect(server) as connection:
        connection.sendall(head(len(body), "expect: 100-continue", "connection: close"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        (answer,) = answers(read_to_end(connection))
    assert (answer.status, b"is not a flac" in answer.body) == (400, True)


def test_the_limit_of_other_bodies_does_not_hold(server: RunningServer) -> None:
    refused = server.client.post(PATH, files={"file": ("a.wav", bytes(50_000))})
    assert "is not a flac" in refused.json()["error"]["message"]
    refused = server.client.post(PATH, files={"file": ("a.wav", bytes(LIMIT))})
    assert refused.json()["error"]["code"] == "body_too_large"
    assert "given 1000" in refused.json()["error"]["message"]


def test_bodies_that_are_no_forms_are_refused(server: RunningServer) -> None:
    for content, headers in ((b"{}", {"content-type": "application/json"}), (b"", {}), (b"a=b", TYPE)):
        refused = server.client.post(PATH, content=content, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_form")


def test_an_upload_that_breaks_off_leaves_the_server_working(server: RunningServer) -> None:
    for _ in range(3):
        with contextlib.suppress(OSError), connect(server) as connection:
            connection.sendall(head(500_000) + BODY[:400])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert server.client.get("/readyz").status_code == 200
    with httpx.Client(base_url=server.url, timeout=90) as client:
        assert client.post(PATH, files={"file": b"x"}).status_code == 400
