"""The grammar checker as a process: its limits, its replies and its end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from genai_server.config.environment import untrusted_work_environment
from genai_server.grammar_checker.process import MAX_MEMORY
from tests.running_server import wait_until

GRAMMAR = json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]})


@pytest.fixture
def checker() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "genai_server.grammar_checker.process"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"null\n"
        yield process
        process.kill()


def _say(checker: "subprocess.Popen[bytes]", grammar: str) -> bytes:
    assert checker.stdin is not None
    assert checker.stdout is not None
    checker.stdin.write(json.dumps(grammar).encode() + b"\n")
    checker.stdin.flush()
    return checker.stdout.readline()


def test_checker_replies_one_line_per_grammar(checker: "subprocess.Popen[bytes]") -> None:
    assert _say(checker, GRAMMAR) == b"null\n"
    assert "nowhere" in json.loads(_say(checker, GRAMMAR.replace('\\"a\\"', "nowhere")))
    assert _say(checker, GRAMMAR) == b"null\n"


def test_checker_imports_neither_server_nor_runtimes(checker: "subprocess.Popen[bytes]") -> None:
    names = "sys; import genai_server.grammar_checker.process; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", f"import {names}"], capture_output=True, text=True, check=True
    ).stdout
    tops = {name.partition(".")[0] for name in loaded.split()}
    assert not tops & {"numpy", "onnxruntime", "onnxruntime_genai", "pydantic", "fastapi", "tokenizers", "msgspec"}


def test_checker_ends_with_its_stdin_and_ignores_signals(
    checker: "subprocess.Popen[bytes]",
) -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if sys.platform != "win32":
            checker.send_signal(getattr(signal, name))
    assert _say(checker, GRAMMAR) == b"null\n"
    assert checker.stdin is not None
    checker.stdin.close()
    assert checker.wait(10) == 0


def test_checker_ends_during_a_check(checker: "subprocess.Popen[bytes]") -> None:
    assert checker.stdin is not None
    endless = {"allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}b(a|b)*$"} for n in range(24)]}
    checker.stdin.write(json.dumps(json.dumps({"grammars": [{"json_schema": endless}]})).encode() + b"\n")
    checker.stdin.flush()
    process = psutil.Process(checker.pid)
    wait_until(lambda: process.cpu_times().user >= 0.3)  # it is busy
    assert checker.poll() is None
    checker.stdin.close()
    assert checker.wait(10) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps to it on Linux")
def test_kernel_limits_the_checkers_memory(checker: "subprocess.Popen[bytes]") -> None:
    process = psutil.Process(checker.pid)
    soft, _ = process.rlimit(psutil.RLIMIT_AS)
    assert MAX_MEMORY / 2 < soft - process.memory_info().vms <= MAX_MEMORY


def test_thread_limits_the_memory_on_other_systems() -> None:
    code = (
        "import threading, time\n"
        "from genai_server.child_process import watch_memory\n"
        "threading.Thread(target=watch_memory, args=(50_000_000,), daemon=True).start()\n"
        "held = []\n"
        "while True:\n"
        "    held.append(b'x' * 5_000_000)\n"
        "    time.sleep(0.05)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 70


def test_checker_environment_has_no_keys_and_settings() -> None:
    given = {"GENAI_API_KEY": "secret", "HF_TOKEN": "secret", "PATH": os.defpath, "PYTHONPATH": "src", "PORT": "1"}
    assert untrusted_work_environment(given) == {"PATH": os.defpath, "PYTHONPATH": "src"}
