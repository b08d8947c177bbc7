"""The compiler's errors, and its checks before an engine compiles."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from genai_server.config.environment import untrusted_work_environment
from genai_server.grammar_checker.compiler import CHECK_STACK, ENGINE_STACK, MAX_MEMORY, complaint, shortened_message
from genai_server.text.grammars.lark import expression
from tests.running_server import run_python, wait_until


def _lark(source: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": source}]})


@pytest.mark.parametrize(
    "source",
    [
        'start: "a"',
        "start: <[5]>",
        "start: <[151657]> /a+/",
        "start: <|im_end|> | <tool_call>",
        "start: <[4294967295]>",
        # It fails only later.
        'start: a\na: a a | "x" | "x" a "x" a',
    ],
)
def test_grammar_with_special_tokens_or_a_later_failure_is_left_to_the_engine(source: str) -> None:
    assert complaint(_lark(source)) is None


@pytest.mark.parametrize("source", ["", "start: nowhere", "start: /a(/", "start: (", "not a grammar"])
def test_invalid_grammar_is_refused_with_the_compilers_message(source: str) -> None:
    words = complaint(_lark(source))
    assert words
    assert len(words) <= 500


@pytest.mark.parametrize(
    ("words", "shortened"),
    [
        ("panic: oh\n\n<backtrace>\n 0: std::panicking\n</backtrace>", "panic: oh"),
        ("too many items <non-verbose/>", "too many items"),
        ("x" * 900, "x" * 500),
    ],
)
def test_compiler_message_is_sent_without_stack_and_shortened(words: str, shortened: str) -> None:
    assert shortened_message(words) == shortened


def test_stack_size_applies_only_within_the_context() -> None:
    # In an interpreter of its own, because threads of this one may set it, too.
    program = (
        "import threading\n"
        "from genai_server.grammar_checker.compiler import CHECK_STACK, stack\n"
        "with stack(CHECK_STACK):\n"
        "    print(threading.stack_size())\n"
        "print(threading.stack_size())\n"
    )
    assert run_python("-c", program).split() == [str(CHECK_STACK), "0"]
    assert ENGINE_STACK > CHECK_STACK


@given(st.text(st.sampled_from('\\/\n\r\tad\x00é\u2028"[(')))
def test_regular_expression_is_written_as_by_the_library(pattern: str) -> None:
    built = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    assert built == f"start: {expression(pattern)}"


GRAMMAR = json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]})


@pytest.fixture
def checker() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "genai_server.grammar_checker.compiler"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"{}\n"
        yield process
        process.kill()


def _send(checker: "subprocess.Popen[bytes]", grammar: str) -> None:
    assert checker.stdin is not None
    checker.stdin.write(json.dumps({"grammar": grammar, "size": 0}).encode() + b"\n")
    checker.stdin.flush()


def _error(checker: "subprocess.Popen[bytes]", grammar: str) -> str | None:
    _send(checker, grammar)
    assert checker.stdout is not None
    reply: dict[str, str | None] = json.loads(checker.stdout.readline())
    assert reply.keys() == {"error"}
    return reply["error"]


def test_checker_replies_one_line_per_grammar(checker: "subprocess.Popen[bytes]") -> None:
    assert _error(checker, GRAMMAR) is None
    assert "nowhere" in str(_error(checker, GRAMMAR.replace('\\"a\\"', "nowhere")))
    assert _error(checker, GRAMMAR) is None


def test_checker_ends_with_its_stdin_and_ignores_signals(checker: "subprocess.Popen[bytes]") -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if sys.platform != "win32":
            checker.send_signal(getattr(signal, name))
    assert _error(checker, GRAMMAR) is None
    assert checker.stdin is not None
    checker.stdin.close()
    assert checker.wait(90) == 0


def test_checker_ends_during_a_check(checker: "subprocess.Popen[bytes]") -> None:
    endless = {"allOf": [{"pattern": f"^(a|b)*a(a|b){{{n}}}b(a|b)*$"} for n in range(24)]}
    _send(checker, json.dumps({"grammars": [{"json_schema": endless}]}))
    process = psutil.Process(checker.pid)
    wait_until(lambda: process.cpu_times().user >= 0.3)  # it is busy
    assert checker.poll() is None
    assert checker.stdin is not None
    checker.stdin.close()
    assert checker.wait(90) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps to it on Linux")
def test_kernel_limits_the_checkers_memory(checker: "subprocess.Popen[bytes]") -> None:
    process = psutil.Process(checker.pid)
    soft, _ = process.rlimit(psutil.RLIMIT_AS)
    assert MAX_MEMORY / 2 < soft - process.memory_info().vms <= MAX_MEMORY


def test_thread_limits_the_memory_on_other_systems() -> None:
    code = (
        "import threading, time\n"
        "from genai_server.system.processes import watch_memory\n"
        "threading.Thread(target=watch_memory, args=(50_000_000,), daemon=True).start()\n"
        "held = []\n"
        "while True:\n"
        "    held.append(b'x' * 5_000_000)\n"
        "    time.sleep(0.05)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=90, check=False).returncode == 70


def test_checker_imports_neither_server_nor_runtimes_and_gets_no_keys(checker: "subprocess.Popen[bytes]") -> None:
    given = {"GENAI_API_KEY": "secret", "HF_TOKEN": "secret", "PATH": os.defpath, "PYTHONPATH": "src", "PORT": "1"}
    assert untrusted_work_environment(given) == {"PATH": os.defpath, "PYTHONPATH": "src"}
    names = "sys; import genai_server.grammar_checker.compiler; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", f"import {names}"], capture_output=True, text=True, check=True
    ).stdout
    tops = {name.partition(".")[0] for name in loaded.split()}
    assert not tops & {"numpy", "onnxruntime", "onnxruntime_genai", "pydantic", "fastapi", "tokenizers", "msgspec"}
