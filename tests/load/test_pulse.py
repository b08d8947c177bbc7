"""The duration of /healthz is measured in a separate process."""

import http.server
import threading
import time
from collections.abc import Iterator

import pytest
from _load.pulse import pulse

HELD = 0.3


class _Health(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held = threading.Event()

    def do_GET(self) -> None:
        if self.held.is_set():
            self.held.clear()
            time.sleep(HELD)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Health) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def test_delayed_answer_is_recorded_with_its_duration(port: int) -> None:
    with pulse(port) as beats:
        beats.look()
        assert beats.beats
        before = time.monotonic()
        _Health.held.set()
        while _Health.held.is_set():
            time.sleep(0.01)
        beats.look()
    assert beats.failed == 0
    assert beats.slowest(before) >= HELD
    assert beats.slowest(time.monotonic()) == 0.0
