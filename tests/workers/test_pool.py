"""The pool of processes: order, crashes, time limits, tasks that nobody waits for, and the bound on what waits."""

import asyncio
from pathlib import Path

import pytest

from genai_server.errors import CheckerUnavailable, QueueFull, Unavailable
from genai_server.messages.supervisor_protocol import Task, TaskOwner
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import CHECK_GRAMMAR, DECODE_LONG, READ_IMAGE
from tests.workers.scripted_processes import scripted_pool, task, until

pytestmark = pytest.mark.anyio


async def test_processes_are_used_again_by_tasks_of_their_sort() -> None:
    async with scripted_pool() as (pool, script):
        for name, kind, spec in (
            ("one", CHECK_GRAMMAR, {}),
            ("two", CHECK_GRAMMAR, {}),
            ("other kind", READ_IMAGE, {}),
            ("other spec", CHECK_GRAMMAR, {"model": "m"}),
            ("three", CHECK_GRAMMAR, {}),
        ):
            await script.run(pool, Task(kind.name, TaskOwner(), spec, {"name": name}))
        assert [process.asked for process in script.processes] == [
            ["one", "two", "three"],
            ["other kind"],
            ["other spec"],
        ]


async def test_an_idle_process_that_died_is_replaced() -> None:
    async with scripted_pool() as (pool, script):
        for name in ("one", "two"):
            await script.run(pool, task(name))
            script.processes[-1].end()
        assert len(script.processes) == 2


async def test_the_least_recently_used_processes_end_where_there_are_too_many() -> None:
    async with scripted_pool() as (pool, script):
        for number in range(10):
            await script.run(pool, Task("read_image", TaskOwner(), {"model": number}, {"name": str(number)}))
        assert [process.is_alive for process in script.processes] == [False, False] + [True] * 8


async def test_long_tasks_hold_up_no_others() -> None:
    async with scripted_pool(processes=1) as (pool, script):
        long = pool.submit([task("long", kind=DECODE_LONG), task("longer", kind=DECODE_LONG)])
        await script.run(pool, task("short"))
        assert script.asked == ["long", "short"]
        (other,) = pool.submit([task("of another key", tenant="b", kind=DECODE_LONG)])
        await script.tell_all("of another key", "long", "longer")
        await asyncio.gather(*long, other)


async def test_a_task_is_repeated_if_its_process_dies_once() -> None:
    async with scripted_pool() as (pool, script):
        (answer,) = pool.submit([task("one")])
        await script.tell("one", "die")
        await until(lambda: len(script.processes) == 2)
        await script.tell("one")
        assert (await answer)["name"] == "one"


async def test_a_task_that_two_processes_die_of_fails_alone() -> None:
    async with scripted_pool() as (pool, script):
        (killer, other) = pool.submit([task("killer"), task("other")])
        await script.tell("killer", "die")
        await until(lambda: script.asked.count("killer") == 2)
        await script.tell("killer", "die")
        with pytest.raises(ProcessDied, match="exit status -9"):
            await killer
        await script.tell("other")
        await other


async def test_a_task_that_takes_too_long_is_not_repeated(own_folder: Path) -> None:
    target = own_folder / "target"
    target.write_bytes(b"a part")
    async with scripted_pool() as (pool, script):
        (answer,) = pool.submit([task("one", target=str(target))])
        await script.tell("one", "hang")
        with pytest.raises(ProcessTimeout):
            await answer
        assert len(script.processes) == 1
        assert not target.exists()


async def test_a_process_that_cannot_be_started_is_the_error_of_its_kind() -> None:
    async with scripted_pool() as (pool, script):
        script.is_broken = True
        (answer,) = pool.submit([task("one")])
        with pytest.raises(CheckerUnavailable):
            await answer
        with pytest.raises(CheckerUnavailable):
            await pool.start_process(CHECK_GRAMMAR, {})
        script.is_broken = False
        await script.run(pool, task("two"))


async def test_a_task_that_nobody_waits_for_is_not_started() -> None:
    async with scripted_pool(processes=1) as (pool, script):
        first, left, last = pool.submit([task("first"), task("left"), task("last")])
        await script.until_asked("first")
        left.cancel()
        await script.tell_all("first", "last")
        await asyncio.gather(first, last)
        assert script.asked == ["first", "last"]


async def test_a_running_task_that_nobody_waits_for_leaves_no_file(own_folder: Path) -> None:
    target = own_folder / "target"
    async with scripted_pool() as (pool, script):
        (answer,) = pool.submit([task("one", target=str(target))])
        await script.until_asked("one")
        answer.cancel()
        target.write_bytes(b"all of it")
        await script.tell("one")
        await until(lambda: not target.exists())
        assert script.processes[0].is_alive


@pytest.mark.parametrize("order", ["ok", "die"])
async def test_space_is_kept_until_a_task_that_writes_into_it_has_ended(own_folder: Path, order: str) -> None:
    target = own_folder / "target"
    async with scripted_pool(space=100) as (pool, script):
        space = await pool.reserve_space(TaskOwner("a"), 50, Unavailable)
        (answer,) = space.submit([task("one", target=str(target))])
        await script.until_asked("one")
        target.write_bytes(b"a part of it")
        answer.cancel()
        space.release()
        waiting = asyncio.create_task(pool.reserve_space(TaskOwner("a"), 50, Unavailable))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert pool._space.num_bytes == 50
        await script.tell("one", order)
        (await waiting).release()
        assert not target.exists()
        assert pool._space.num_bytes == 0


async def test_space_of_a_task_that_is_not_started_is_returned_at_once() -> None:
    async with scripted_pool(space=100, processes=1) as (pool, script):
        (running,) = pool.submit([task("running")])
        await script.until_asked("running")
        space = await pool.reserve_space(TaskOwner("a"), 50, Unavailable)
        (answer,) = space.submit([task("left")])
        space.release()
        assert pool._space.num_bytes == 50
        answer.cancel()
        await asyncio.sleep(0)
        assert pool._space.num_bytes == 0
        await script.tell("running")
        await running


async def test_space_of_a_task_that_is_refused_is_returned_at_once() -> None:
    async with scripted_pool(space=100, processes=1, waiting_bytes=9) as (pool, script):
        running, *waiting = (pool.submit([task(name, cost=5)])[0] for name in ("running", "one"))
        space = await pool.reserve_space(TaskOwner("a"), 50, Unavailable)
        (refused,) = space.submit([task("two", cost=5)])
        space.release()
        assert pool._space.num_bytes == 0
        with pytest.raises(QueueFull):
            await refused
        await script.tell_all("running", "one")
        await asyncio.gather(running, *waiting)


async def test_a_running_task_that_nobody_waits_for_ends_for_the_next_one() -> None:
    async with scripted_pool(grace=0.0, processes=1) as (pool, script):
        (left,) = pool.submit([task("left")])
        await script.until_asked("left")
        left.cancel()
        await asyncio.sleep(0)
        assert script.processes[0].is_alive
        await script.run(pool, task("next"))
        assert [process.is_alive for process in script.processes] == [False, True]


async def test_a_long_task_that_nobody_waits_for_ends_at_once() -> None:
    async with scripted_pool() as (pool, script):
        (left,) = pool.submit([task("left", kind=DECODE_LONG)])
        await script.until_asked("left")
        left.cancel()
        await until(lambda: not script.processes[0].is_alive)


async def test_too_much_waiting_work_of_a_key_is_refused_as_a_whole() -> None:
    async with scripted_pool(processes=1, waiting_bytes=100) as (pool, script):
        running = pool.submit([task("running", cost=90)])
        waiting = pool.submit([task("waiting", cost=60), task("waiting too", cost=30)])
        refused = pool.submit([task("one", cost=6), task("two", cost=5)])
        words = (
            "grammars with 90 bytes wait to be prepared for this API key already: "
            "GENAI_MAX_WAITING_GRAMMAR_BYTES lets 100 wait, given 11 more"
        )
        for answer in refused:
            with pytest.raises(QueueFull) as full:
                await answer
            assert full.value.message == words
        more = pool.submit([task("enough", cost=10)])
        await script.tell_all("running", "waiting", "waiting too", "enough")
        await asyncio.gather(*running, *waiting, *more)


async def test_the_bound_is_for_each_key_and_unit_and_for_batches_apart() -> None:
    async with scripted_pool(processes=1, waiting_bytes=100) as (pool, script):
        owner = TaskOwner("a", "batch", low_priority=True)
        tasks = [
            task("running", cost=99),
            task("waiting", cost=99),
            task("of b", tenant="b", cost=99),
            task("more of b", tenant="b", cost=99),
            task("image", kind=READ_IMAGE, cost=99),
            Task("check_grammar", owner, {}, {"name": "batch"}, cost=99),
        ]
        answers = [pool.submit([each])[0] for each in tasks]
        await script.tell_all("running", "of b", "waiting", "more of b", "image", "batch")
        await asyncio.gather(*answers)


async def test_what_can_run_at_once_has_no_bound() -> None:
    async with scripted_pool(waiting_bytes=100) as (pool, script):
        await script.run(pool, task("large", cost=1000))


async def test_a_process_started_in_advance_takes_the_first_task() -> None:
    async with scripted_pool() as (pool, script):
        for _ in range(2):
            await pool.start_process(CHECK_GRAMMAR, {})
        await script.run(pool, task("one"))
        assert len(script.processes) == 1


async def test_another_keys_task_finds_a_process_while_those_of_one_key_wait() -> None:
    async with scripted_pool(processes=2) as (pool, script):
        many = pool.submit([task(f"a{number}") for number in range(4)])
        await script.until_asked("a0", "a1")
        await until(lambda: len(script.processes) == 3)
        script.is_broken = True  # whoever needs another process now fails
        await script.run(pool, task("b", tenant="b"))
        await script.tell_all("a0", "a1", "a2", "a3")
        await asyncio.gather(*many)
        assert len(script.processes) == 3


async def test_another_keys_task_takes_the_process_that_is_being_started() -> None:
    async with scripted_pool(processes=1) as (pool, script):
        (first,) = pool.submit([task("a0")])
        await script.until_asked("a0")
        script.may_start.clear()
        (second,) = pool.submit([task("a1")])
        await until(lambda: script.num_starts == 2)
        (other,) = pool.submit([task("b", tenant="b")])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        script.may_start.set()
        await script.tell("b")
        await other
        await script.tell_all("a0", "a1")
        await asyncio.gather(first, second)
        assert script.num_starts == 2


async def test_a_task_takes_a_process_that_is_free_before_its_own_has_started() -> None:
    async with scripted_pool(processes=1) as (pool, script):
        (first,) = pool.submit([task("a0")])
        await script.until_asked("a0")
        script.may_start.clear()
        more = pool.submit([task("a1"), task("a2")])
        (other,) = pool.submit([task("b", tenant="b")])
        await until(lambda: script.num_starts == 2)
        await script.tell_all("a0", "b")
        assert [process.asked for process in script.processes] == [["a0", "b"]]
        script.may_start.set()
        await script.tell_all("a1", "a2")
        await asyncio.gather(first, other, *more)


async def test_a_start_that_fails_is_the_error_of_one_task_only() -> None:
    async with scripted_pool(processes=2) as (pool, script):
        script.may_start.clear()
        both = pool.submit([task("a0"), task("b", tenant="b")])
        await until(lambda: script.num_starts == 2)
        script.num_broken = 1
        script.may_start.set()
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(CheckerUnavailable):
            await done.pop()
        await until(lambda: len(script.asked) == 1)
        await script.tell(script.asked[0])
        assert len(await asyncio.gather(*both, return_exceptions=True)) == 2


async def test_no_process_is_kept_ready_where_nothing_waits() -> None:
    async with scripted_pool(processes=2) as (pool, script):
        await script.run(pool, task("one"), task("two"))
        assert not any(pool._starting.values())
        assert len(script.processes) == 2


async def test_tasks_run_although_no_other_process_can_be_kept_ready() -> None:
    async with scripted_pool(processes=1) as (pool, script):
        await pool.start_process(CHECK_GRAMMAR, {})
        script.is_broken = True
        await script.run(pool, task("one"), task("two"))
        assert len(script.processes) == 1


async def test_close_ends_what_runs_and_waits() -> None:
    async with scripted_pool(processes=1) as (pool, script):
        answers = pool.submit([task("running"), task("waiting")])
        await script.until_asked("running")
        pool.close()
        answers += pool.submit([task("late")])
        for answer in answers:
            with pytest.raises(CheckerUnavailable, match="the server is stopping"):
                await answer
