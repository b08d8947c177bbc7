"""Jobs of a thread: in order, tenants in turns, and those of the background after all others."""

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from genai_server.engine.worker_thread import WorkerThread


def test_jobs_of_the_background_come_last() -> None:
    worker, go_on, done = WorkerThread("test"), threading.Event(), list[str]()
    futures: list[Future[Any]] = [worker.submit(go_on.wait)]
    futures += [worker.submit(partial(done.append, name), background=True) for name in "bc"]
    futures += [worker.submit(partial(done.append, name)) for name in "xy"]
    go_on.set()
    for future in futures:
        future.result(30)
    assert done == ["x", "y", "b", "c"]


def test_tenants_take_turns() -> None:
    worker, go_on, done = WorkerThread("test"), threading.Event(), list[str]()
    futures: list[Future[Any]] = [worker.submit(go_on.wait)]
    for background in (True, False):
        for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
            shown = name.upper() if background else name
            job = partial(done.append, shown)
            futures.append(worker.submit(job, tenant=name[0], background=background))
    go_on.set()
    for future in futures:
        future.result(30)
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3", "A1", "B1", "C1", "A2", "B2", "A3"]


def test_a_failed_job_fails_its_future_only() -> None:
    worker = WorkerThread("test")
    failed = worker.submit(partial(int, "x"))
    assert worker.submit(partial(int, "7")).result(30) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result(30)


def test_initializer_runs_in_the_thread_before_the_first_job() -> None:
    found: list[str] = []
    worker = WorkerThread("named", lambda: found.append(threading.current_thread().name))
    assert worker.submit(lambda: list(found)).result(30) == found
    assert found[0].startswith("named")
