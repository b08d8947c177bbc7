"""The time that a server on this machine takes of its cores."""

import os
import socket
import time
from multiprocessing import get_context

import psutil

from genai_server.bench.processes import ServerProcesses, server_processes


def test_the_processes_that_listen_on_a_urls_port_are_found_and_their_time_grows_with_their_work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = server_processes(f"http://localhost:{listener.getsockname()[1]}")
        assert found is not None
        before = found.cpu_seconds()
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        after = found.cpu_seconds()
        assert before is not None
        assert after is not None
        assert after - before > 0.1


def test_nothing_is_known_of_another_machine_or_of_a_port_that_nobody_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert server_processes(f"http://192.0.2.1:{port}") is None
        assert server_processes(f"http://example.org:{port}") is None
    assert server_processes(f"http://127.0.0.1:{port}") is None


def test_of_a_process_that_has_gone_nothing_is_told() -> None:
    child = get_context("spawn").Process(target=os.getpid)
    child.start()
    processes = ServerProcesses([psutil.Process(child.pid)])
    child.join()
    assert processes.cpu_seconds() is None
