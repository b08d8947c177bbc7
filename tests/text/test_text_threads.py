"""Turns between API keys in the threads for long prompts, with jobs that end when a test says so."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from genai_server.messages.worker_tasks import TaskOwner
from genai_server.text.codec import SHORT_TEXT, TextCodec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.text_threads import TextThreads
from genai_server.text.tokenizer import ByteTokenizer
from genai_server.workers.task_queue import TaskQueue
from tests.hand_clock import HandClock
from tests.running_server import wait_until


class Job:
    """Ends when it is told to, and returns its name."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self.name = name
        self._begun = begun
        self._may_end = threading.Event()

    def __call__(self) -> str:
        self._begun.append(self.name)
        assert self._may_end.wait(60)
        return self.name

    def end(self) -> None:
        self._may_end.set()


class Scene:
    """Threads, the clock of their turns, and the names of the jobs that have begun."""

    def __init__(self, threads: TextThreads, clock: HandClock) -> None:
        self.clock = clock
        self.begun: list[str] = []
        self.jobs: dict[str, Job] = {}
        self.results: dict[str, asyncio.Task[str]] = {}
        self._threads = threads

    async def ask(self, name: str) -> None:
        """A job of the tenant that its name begins with, each in a request of its own."""
        self.jobs[name] = Job(name, self.begun)
        self.results[name] = asyncio.create_task(self._threads.run(self.jobs[name], TaskOwner(name[0], name)))
        await asyncio.sleep(0)

    async def until_begun(self, *names: str) -> None:
        await asyncio.to_thread(wait_until, lambda: set(names) <= set(self.begun))

    async def end(self, *names: str) -> None:
        for name in names:
            await self.until_begun(name)
            self.jobs[name].end()
            assert await self.results[name] == name


def _play(play: Callable[[Scene], Awaitable[None]], slots: int) -> None:
    clock = HandClock()

    async def main() -> None:
        with closing(TextThreads(slots, clock)) as threads:
            scene = Scene(threads, clock)
            try:
                await play(scene)
            finally:
                for job in scene.jobs.values():
                    job.end()
                await asyncio.gather(*scene.results.values(), return_exceptions=True)

    asyncio.run(main())


def test_another_keys_prompt_does_not_wait_for_those_of_one_key() -> None:
    async def play(scene: Scene) -> None:
        for number in range(5):
            await scene.ask(f"a{number}")
        await scene.until_begun("a0", "a1")
        await scene.ask("b")
        await scene.end("b")
        assert sorted(scene.begun) == ["a0", "a1", "b"]

    _play(play, slots=2)


def test_several_prompts_of_a_key_do_not_wait_for_one_of_another_key() -> None:
    async def play(scene: Scene) -> None:
        for name in ("a0", "a1", "b0", "b1", "b2"):
            await scene.ask(name)
        for name in ("b0", "b1", "b2"):
            await scene.until_begun(name)
            scene.clock.wait(1.0)
            await scene.end(name)
        assert scene.begun == ["a0", "b0", "b1", "b2"]
        await scene.end("a0", "a1")

    _play(play, slots=1)


def test_a_prompt_that_nobody_waits_for_is_not_encoded() -> None:
    async def play(scene: Scene) -> None:
        for name in ("a0", "a1", "a2"):
            await scene.ask(name)
        await scene.until_begun("a0")
        scene.results["a1"].cancel()
        await scene.end("a0", "a2")
        assert scene.begun == ["a0", "a2"]

    _play(play, slots=1)


def test_a_running_job_keeps_its_thread_when_its_client_leaves() -> None:
    async def play(scene: Scene) -> None:
        for name in ("a0", "a1"):
            await scene.ask(name)
        await scene.until_begun("a0")
        scene.results["a0"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await scene.results["a0"]
        assert scene.begun == ["a0"]
        scene.jobs["a0"].end()
        await scene.end("a1")

    _play(play, slots=1)


def test_a_client_that_leaves_when_its_turn_comes_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(scene: Scene) -> None:
        for name in ("a0", "a1", "a2", "a3"):
            await scene.ask(name)
        next_turn, leaving = TaskQueue.next, [scene.results["a1"].cancel, scene.results["a2"].cancel]

        def next_and_leave(queue: TaskQueue[asyncio.Future[None]]) -> asyncio.Future[None] | None:
            turn = next_turn(queue)
            if turn is not None and len(leaving) == 2:
                leaving.pop(0)()  # before its turn is passed on
            elif turn is not None and leaving:
                asyncio.get_running_loop().call_soon(leaving.pop())  # afterwards
            return turn

        monkeypatch.setattr(TaskQueue, "next", next_and_leave)
        await scene.end("a0", "a3")
        assert scene.begun == ["a0", "a3"]

    _play(play, slots=1)


def test_an_error_is_the_callers() -> None:
    async def main() -> None:
        def fail() -> None:
            raise ValueError("wrong")

        with closing(TextThreads(1)) as threads:
            for _ in range(3):
                with pytest.raises(ValueError, match="wrong"):
                    await threads.run(fail, TaskOwner())

    asyncio.run(main())


def test_a_codecs_long_prompts_take_turns_between_keys() -> None:
    may_end, begun = threading.Event(), list[str]()

    class Slow(ByteTokenizer):
        def encode(self, *pieces: str) -> list[int]:
            begun.append(pieces[0][0])
            assert pieces[0][0] != "a" or may_end.wait(60)
            return super().encode(*pieces)

    async def main() -> None:
        codec = TextCodec({"default": ChatTemplate("{{ messages[0].content }}", {})}, Slow())
        with closing(codec):
            try:
                text, owner = SHORT_TEXT * "a", TaskOwner("a", "long")
                of_a = [
                    asyncio.create_task(codec.encode_chat([{"role": "user", "content": f"{text}a"}], owner=owner)),
                    *(asyncio.create_task(codec.encode_text(f"{text}a", owner=owner)) for _ in range(3)),
                ]
                await asyncio.to_thread(wait_until, lambda: len(begun) == 2)
                await codec.encode_text(SHORT_TEXT * "b" + "b", owner=TaskOwner("b", "other"))
                assert begun == ["a", "a", "b"]
            finally:
                may_end.set()
            await asyncio.gather(*of_a)

    asyncio.run(main())
