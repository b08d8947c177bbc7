"""Jobs of a thread: in order, tenants in turns, and those of low priority after all others."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from genai_server.engine.worker_thread import WorkerThread


def test_tenants_take_turns() -> None:
    worker, go_on, done = WorkerThread("test"), threading.Event(), list[str]()
    futures: list[Future[Any]] = [worker.submit(go_on.wait)]
    for low_priority in (True, False):
        for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
            shown = name.upper() if low_priority else name
            job = partial(done.append, shown)
            futures.append(worker.submit(job, tenant=name[0], low_priority=low_priority))
    go_on.set()
    for future in futures:
        future.result(90)
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3", "A1", "B1", "C1", "A2", "B2", "A3"]


def test_a_second_thread_runs_the_jobs_of_another_tenant() -> None:
    worker, go_on, done = WorkerThread("test", has_second=True), threading.Event(), list[str]()
    futures: list[Future[Any]] = [worker.submit(go_on.wait, tenant="a")]
    futures.append(worker.submit(partial(done.append, "a"), tenant="a"))
    futures.append(worker.submit(partial(done.append, "c of low priority"), tenant="c", low_priority=True))
    for number in range(3):
        futures.append(worker.submit(partial(done.append, f"b{number}"), tenant="b"))
        futures[-1].result(90)
    assert done == ["b0", "b1", "b2"]
    go_on.set()
    for future in futures:
        future.result(90)
    assert done[3:] == ["a", "c of low priority"]


def test_both_threads_start_within_the_given_context() -> None:
    started, go_on = set[threading.Thread](), threading.Event()

    def running() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("started")}

    @contextmanager
    def starting() -> Iterator[None]:
        before = running()
        yield
        started.update(running() - before)

    worker = WorkerThread("started", has_second=True, starting=starting)
    futures = [worker.submit(go_on.wait, tenant=tenant) for tenant in "aabb"]
    go_on.set()
    for future in futures:
        future.result(90)
    assert len(started) == 2


def test_a_failed_job_fails_its_future_only() -> None:
    worker = WorkerThread("test")
    failed = worker.submit(partial(int, "x"))
    assert worker.submit(partial(int, "7")).result(90) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result(90)


def test_initializer_runs_in_the_thread_before_the_first_job() -> None:
    found: list[str] = []
    worker = WorkerThread("named", lambda: found.append(threading.current_thread().name))
    assert worker.submit(lambda: list(found)).result(90) == found
    assert found[0].startswith("named")
