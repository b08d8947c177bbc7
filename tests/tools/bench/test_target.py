"""The processor time of a server on this machine."""

import os
import socket
import time
from collections.abc import Sequence
from multiprocessing import get_context

import psutil

from genai_server.tools.bench.bench_client import Calibration, Server, Target, server_processes


def cpu_seconds(processes: Sequence[psutil.Process]) -> float | None:
    return Target(Server.__new__(Server), Calibration(0.0, 1.0), None, processes=processes).cpu_seconds()


def test_processes_behind_a_port_are_found_with_their_cpu_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = server_processes(f"http://localhost:{listener.getsockname()[1]}")
        assert found
        before = cpu_seconds(found)
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        after = cpu_seconds(found)
        assert before is not None
        assert after is not None
        assert after - before > 0.1


def test_remote_unused_and_ended_processes_have_no_cpu_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert server_processes(f"http://192.0.2.1:{port}") == []
        assert server_processes(f"http://example.org:{port}") == []
    assert server_processes(f"http://127.0.0.1:{port}") == []
    assert cpu_seconds([]) is None
    child = get_context("spawn").Process(target=os.getpid)
    child.start()
    processes = [psutil.Process(child.pid)]
    child.join()
    assert cpu_seconds(processes) is None
