"""A large conversation of one key: it stays usable, and slows down no other key."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from genai_server.cli.serve.exit_status import CUT_OFF
from tests.running_server import PATIENCE, RunningServer, run_server
from tests.server_here import run_here

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
KEYS = {"GENAI_API_KEYS": f"alice:{ALICE},bob:{BOB}"}
NUM_ITEMS, NUM_BODIES = 3000, 12
# In bytes.
ITEM = 3000


class Large:
    """A server with a conversation of alice's that has 9 MB, over the limit of what a response continues."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.alice, self.bob = (_client(server, key) for key in (ALICE, BOB))
        self.path = f"/v1/conversations/{self.alice.post('/v1/conversations', json={}).json()['id']}"
        self.id = self.path.rpartition("/")[2]
        self.ids = [f"msg_{number:040}" for number in range(NUM_ITEMS)]
        share = NUM_ITEMS // NUM_BODIES
        for start in range(0, NUM_ITEMS, share):
            items = [{"id": id, "role": "user", "content": "x" * ITEM} for id in self.ids[start : start + share]]
            self.alice.post(f"{self.path}/items", json={"items": items}).raise_for_status()

    def refer(self, ids: list[str]) -> httpx.Response:
        """Refer to items of alice's conversation, one by one."""
        items = [{"type": "item_reference", "id": id} for id in ids]
        return self.alice.post("/v1/responses", json={"input": items})

    def attempts(self) -> list[Callable[[], httpx.Response]]:
        """The most expensive calls for the store."""
        items = f"{self.path}/items"
        return [
            lambda: self.refer(self.ids),
            lambda: self.refer(self.ids[:1000]),
            lambda: self.alice.get(items, params={"limit": 100}),
            lambda: self.alice.post("/v1/responses", json={"input": "say x", "conversation": self.id}),
        ]


def _client(server: RunningServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=120, headers={"authorization": f"Bearer {key}"})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    with run_here(tmp_path_factory.mktemp("large"), "--device", "scripted", settings=KEYS) as server:
        made = Large(server)
        with closing(made.alice), closing(made.bob):
            yield made


@contextmanager
def looping(large: Large, num_clients: int = 4) -> Iterator[list[httpx.Response]]:
    """Clients of alice that repeat the most expensive calls; yields their latest answers."""
    is_over, answers = threading.Event(), list[httpx.Response]()

    def loop(attempt: Callable[[], httpx.Response]) -> None:
        while not is_over.is_set():
            answers.append(attempt())

    with ThreadPoolExecutor(num_clients) as pool:
        done = [pool.submit(loop, attempt) for attempt in large.attempts()[:num_clients]]
        try:
            yield answers
        finally:
            is_over.set()
    for one in done:
        one.result()


def complaint(response: httpx.Response, param: str) -> str:
    """Why a request is refused because of this parameter."""
    found: dict[str, str] = response.json()["error"]
    assert (response.status_code, found["param"]) == (400, param)
    return found["message"]


def test_references_count_with_their_number_and_size(large: Large) -> None:
    too_many = complaint(large.refer(large.ids), "input")
    assert "at most 1024 items of type item_reference; given 3000" in too_many
    big = {"items": [{"id": "msg_big", "role": "user", "content": "x" * 900_000}]}
    id = large.alice.post("/v1/conversations", json=big).json()["id"]
    assert "at most 8388608 bytes in total" in complaint(large.refer(["msg_big"] * 1000), "input")
    large.alice.delete(f"/v1/conversations/{id}").raise_for_status()


def test_an_item_or_a_page_is_read_and_changed(large: Large) -> None:
    items = f"{large.path}/items"
    assert large.alice.get(f"{items}/{large.ids[2000]}").json()["id"] == large.ids[2000]
    page = large.alice.get(items, params={"after": large.ids[2000], "order": "asc", "limit": 100}).json()
    assert [item["id"] for item in page["data"]] == large.ids[2001:2101]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (large.ids[2001], large.ids[2100], True)
    added = large.alice.post(f"{items}", json={"items": [{"id": "msg_new", "role": "user", "content": "x"}]})
    assert added.status_code == 200
    assert large.alice.delete(f"{items}/msg_new").json()["id"] == large.id
    assert large.alice.get(items, params={"limit": 1}).json()["first_id"] == large.ids[-1]


def test_a_response_continues_the_newest_turns(large: Large) -> None:
    asked = {"input": "say hello", "conversation": large.id, "store": False}
    refused = large.alice.post("/v1/responses", json=asked)
    assert "8388608 (8 times GENAI_MAX_BODY_BYTES" in complaint(refused, "conversation")
    answer = large.alice.post("/v1/responses", json={**asked, "truncation": "auto"})
    assert answer.json()["output"][0]["content"][0]["text"] == "hello"


@pytest.mark.slow
def test_another_keys_responses_all_succeed(large: Large) -> None:
    previous: dict[str, str] = {}
    with looping(large) as answers:
        for number in range(8):
            answer = large.bob.post("/v1/responses", json={"input": f"say {number}", **previous})
            assert answer.status_code == 200, answer.text
            assert "x-genai-not-stored" not in answer.headers
            previous = {"previous_response_id": answer.json()["id"]}
            assert large.bob.get(f"/v1/responses/{answer.json()['id']}").status_code == 200
    assert {answer.status_code for answer in answers} <= {200, 400}


@pytest.mark.slow
def test_sigterm_ends_the_busy_server(tmp_path: Path) -> None:
    options = ("--device", "scripted", "--drain-timeout", "1")
    is_stopped = threading.Event()

    def loop(attempt: Callable[[], httpx.Response]) -> None:
        with suppress(httpx.TransportError):
            while not is_stopped.is_set():
                attempt()

    with run_server(tmp_path, *options, settings=KEYS) as server:
        large = Large(server)
        with closing(large.alice), closing(large.bob), ThreadPoolExecutor(4) as pool:
            loops = [pool.submit(loop, attempt) for attempt in large.attempts()]
            answered = large.bob.get("/v1/models")
            server.process.send_signal(signal.SIGTERM)
            try:
                # A thread that blocked the process would do so forever.
                status = server.process.wait(PATIENCE)
            finally:
                is_stopped.set()
        assert answered.status_code == 200
        assert status in (0, CUT_OFF)
        for one in loops:
            one.result()
