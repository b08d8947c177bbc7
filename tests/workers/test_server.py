"""The pool in the supervisor's thread and its clients in API processes: messages, lost connections, secret."""

import asyncio
import contextlib
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from genai_server.engine_client.supervisor import SupervisorClient
from genai_server.errors import AudioReaderUnavailable, CheckerUnavailable, QueueFull, Unavailable
from genai_server.messages.supervisor_protocol import TaskOwner, read_address
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import CHECK_GRAMMAR
from tests.running_server import wait_until
from tests.workers.scripted_processes import served_pool, task, until

pytestmark = pytest.mark.anyio


async def test_answers_and_failures_arrive(own_folder: Path) -> None:
    async with served_pool(own_folder) as (client, script):
        answers = client().workers.submit([task("good", data=bytes(3_000_000)), task("late"), task("bad")])
        await script.tell("good")
        assert await answers[0] == {"name": "good", "size": 3_000_000}
        await script.tell("late", "hang")
        with pytest.raises(ProcessTimeout, match="no answer within 60 s"):
            await answers[1]
        await script.tell("bad", "die")
        await until(lambda: script.asked.count("bad") == 2)
        await script.tell("bad", "die")
        with pytest.raises(ProcessDied, match="exit status -9"):
            await answers[2]


async def test_refusals_arrive_as_the_errors_they_are(own_folder: Path) -> None:
    async with served_pool(own_folder, processes=1, waiting_bytes=10) as (client, script):
        workers = client().workers
        script.is_broken = True
        for answer in (*workers.submit([task("one")]), workers.start_process(CHECK_GRAMMAR, {})):
            with pytest.raises(CheckerUnavailable, match="no process"):
                await answer
        script.is_broken = False
        running = workers.submit([task("running"), task("waiting", cost=9)])
        await script.until_asked("running")
        with pytest.raises(QueueFull, match="given 2 more"):
            await workers.submit([task("refused", cost=2)])[0]
        await script.tell_all("running", "waiting")
        await asyncio.gather(*running)


async def test_api_processes_share_one_order_of_turns(own_folder: Path) -> None:
    async with served_pool(own_folder, processes=1) as (client, script):
        first, second = client(), client()
        answers = first.workers.submit([task("running"), *(task(f"a{number}") for number in range(3))])
        await script.until_asked("running")
        answers += second.workers.submit([task("b0", tenant="b"), task("b1", tenant="b")])
        await script.tell_all("b0", "running", "b1", "a0", "a1", "a2")
        await asyncio.gather(*answers)
        assert len(script.processes) == 2


async def test_a_cancelled_task_is_not_run_and_leaves_no_file(own_folder: Path) -> None:
    target = own_folder / "target"
    async with served_pool(own_folder, processes=1) as (client, script):
        workers = client().workers
        running, left, following = workers.submit([task("running", target=str(target)), task("left"), task("next")])
        await script.until_asked("running")
        left.cancel()
        running.cancel()
        target.write_bytes(b"all of it")
        await script.tell_all("running", "next")
        assert (await following)["name"] == "next"
        assert script.asked == ["running", "next"]
        await until(lambda: not target.exists())


async def test_tasks_of_an_api_process_that_dies_end(own_folder: Path) -> None:
    async with served_pool(own_folder, processes=1) as (client, script):
        dying, other = client(), client()
        answers = dying.workers.submit([task("running"), task("waiting")])
        (stays,) = other.workers.submit([task("stays", tenant="b")])
        await script.until_asked("running", "stays")
        dying.close()
        for answer in answers:
            with pytest.raises(CheckerUnavailable, match="cannot be reached"):
                await answer
        await script.tell("stays")
        await stays
        await script.tell("running")
        (last,) = other.workers.submit([task("last")])
        await script.tell("last")
        await last
        assert "waiting" not in script.asked


async def test_a_pool_that_has_ended_is_an_error_and_the_next_one_is_found(own_folder: Path) -> None:
    with closing(SupervisorClient(partial(read_address, own_folder))) as supervisor:
        workers = supervisor.workers
        with pytest.raises(CheckerUnavailable, match="cannot be reached"):
            await workers.submit([task("nowhere")])[0]
        with pytest.raises(AudioReaderUnavailable, match="cannot be reached"):
            await workers.reserve_space(TaskOwner(), 1, AudioReaderUnavailable)
        for _ in range(2):
            async with served_pool(own_folder) as (_, script):
                await until(lambda: supervisor.is_connected)
                await script.run(workers, task("one"))
                (answer,) = workers.submit([task("lost")])
                await script.until_asked("lost")
            with pytest.raises((CheckerUnavailable, ProcessDied)):
                await answer
            await until(lambda: not supervisor.is_connected)


async def test_nothing_is_run_without_the_secret(own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served_pool(own_folder) as (client, script):
        for secret in ("", "other"):
            (answer,) = client(secret).workers.submit([task("one")])
            with pytest.raises(CheckerUnavailable, match="cannot be reached"):
                await answer
        assert script.processes == []
    assert "is not an API process" in caplog.text


async def test_space_is_taken_returned_and_lost_with_its_process(own_folder: Path) -> None:
    async with served_pool(own_folder, space=100) as (client, script):
        first, second = client(), client()
        taken = await first.workers.reserve_space(TaskOwner("a"), 50, Unavailable)
        waiting = asyncio.create_task(second.workers.reserve_space(TaskOwner("b"), 30, Unavailable))
        taken.shrink(40)
        space = await waiting
        waiting = asyncio.create_task(second.workers.reserve_space(TaskOwner("b"), 10, Unavailable))
        left = asyncio.create_task(second.workers.reserve_space(TaskOwner("b"), 10, Unavailable))
        await asyncio.sleep(0)
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        assert not waiting.done()
        first.close()
        (await waiting).release()
        space.release()
        (await second.workers.reserve_space(TaskOwner("c"), 50, Unavailable)).release()


async def test_the_file_of_an_answer_that_comes_too_late_is_removed_before_its_space_is_returned(
    own_folder: Path,
) -> None:
    target = own_folder / "target"
    async with served_pool(own_folder, space=100) as (client, script):
        workers = client().workers
        space = await workers.reserve_space(TaskOwner("a"), 50, Unavailable)
        (answer,) = space.submit([task("one", target=str(target))])
        await script.until_asked("one")
        target.write_bytes(b"all of it")
        process = script.processes[0]
        process.tell("ok")
        # Without giving the loop a turn, so that the answer has not been received when the task is cancelled.
        wait_until(lambda: process.is_idle)
        answer.cancel()
        space.release()
        (await workers.reserve_space(TaskOwner("a"), 50, Unavailable)).release()
        assert not target.exists()


async def test_space_of_an_api_process_that_dies_is_returned_when_its_tasks_have_ended(own_folder: Path) -> None:
    target = own_folder / "target"
    async with served_pool(own_folder, space=100) as (client, script):
        dying, other = client(), client()
        space = await dying.workers.reserve_space(TaskOwner("a"), 50, Unavailable)
        await dying.workers.reserve_space(TaskOwner("b"), 20, Unavailable)
        (lost,) = space.submit([task("one", target=str(target))])
        await script.until_asked("one")
        target.write_bytes(b"a part of it")
        dying.close()
        with pytest.raises(CheckerUnavailable):
            await lost
        waiting = asyncio.create_task(other.workers.reserve_space(TaskOwner("a"), 50, Unavailable))
        # There is space for this one once the pool has noticed.
        (await other.workers.reserve_space(TaskOwner("b"), 15, Unavailable)).release()
        assert not waiting.done()
        await script.tell("one")
        (await waiting).release()
        assert not target.exists()
