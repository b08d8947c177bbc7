"""The runner without a model follows the last line of its prompt."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _models.driven import Driven

from genai_server.engine.runners import scripted
from genai_server.engine.runners.base import Terminated
from genai_server.engine.runners.scripted import EOS, ScriptedRunner
from genai_server.errors import RunnerFailed
from tests.engine.bench import Bench


class Session:
    """One sequence of a runner, answered greedily."""

    def __init__(self, script: str, runner: ScriptedRunner | None = None, id: int = 0) -> None:
        self.runner = Driven(runner or ScriptedRunner())
        self.id = id
        self._prompt = list(f"{script}\n\x04".encode())
        self._last: int | None = None
        self.runner.open(id, self._prompt, 1000)

    def step(self) -> int:
        if self._last is None:
            logits = self.runner.prefill(self.id, self._prompt)
        else:
            (logits,) = self.runner.decode([self.id], [self._last])
        self._last = int(logits.argmax())
        return self._last

    def answer(self) -> str:
        """The rest of the answer, up to its end."""
        tokens = bytearray()
        while (token := self.step()) != EOS:
            tokens.append(token)
        return tokens.decode()


def _answer(script: str) -> str:
    return Session(script).answer()


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("hello there", "hello there"),
        ("say hi", "hi"),
        ("say 🦜 é", "🦜 é"),
        ("say one⏎⏎two", "one\n\ntwo"),
        ("say meet me at home", "meet me at home"),
        ("count 1", "1"),
        ("count 12", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"),
        ("count 0", ""),
        ("delay 0; say hi", "hi"),
        ("say hi; delay 0", "hi"),
        ("say one;say two", "two"),
        ("be quick; say hi", "hi"),
        ("", ""),
        ("say one\nfail at 0\nsay two", "two"),  # only the last line is a script
    ],
)
def test_the_answer_is_what_the_script_says(script: str, answer: str) -> None:
    assert _answer(script) == answer


@pytest.mark.parametrize(
    "script",
    ["count on me", "counting 3", "delay the train", "count", "delay", "hold", "hold on at 0", "Say hi"],
)
def test_sentence_that_begins_like_a_command_is_repeated(script: str) -> None:
    assert _answer(script) == script


@pytest.mark.parametrize(
    ("below", "answer"),
    [
        ("", "first"),
        ("\nsay nothing", "first"),
        ("\nscript after never: say never", "first"),
        ("\nresult: key", "second"),
        ("\nresult: keys\nRemember to be brief.", "second"),
        ("\nresult: key\n script: say third", "third"),
    ],
)
def test_marked_line_is_run_wherever_it_stands(below: str, answer: str) -> None:
    assert _answer(f"key\nscript: say first\nscript after key: say second{below}") == answer


def test_the_answer_goes_on_ending() -> None:
    session = Session("say a")
    assert [session.step() for _ in range(4)] == [ord("a"), EOS, EOS, EOS]


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_prompt_may_come_in_chunks(chunk: int) -> None:
    runner, prompt = Driven(ScriptedRunner()), list(b"say hi\n\x04")
    runner.open(0, prompt, 1000)
    logits = [runner.prefill(0, prompt[start : start + chunk]) for start in range(0, len(prompt), chunk)]
    assert int(logits[-1].argmax()) == ord("h")


def test_vocabulary_has_the_end_token_and_matches_the_logits() -> None:
    runner, prompt = Driven(ScriptedRunner(context_length=77)), list(b"x\n\x04")
    assert runner.open(0, prompt, 10) == 0
    logits = runner.prefill(0, prompt)
    assert logits.shape == (runner.model.vocab_size,)
    assert logits.dtype == np.float32
    assert runner.decode([0], [ord("x")]).shape == (1, runner.model.vocab_size)
    assert (runner.model.eos_token_ids, runner.model.context_length) == ([EOS], 77)


def test_a_closed_sequence_is_forgotten_and_its_number_free() -> None:
    runner = ScriptedRunner()
    Session("say old", runner).step()
    runner.close(0)
    runner.close(0)
    assert Session("say new", runner).answer() == "new"


# events


@pytest.mark.parametrize(
    ("script", "before"), [("fail at 0", ""), ("count 9; fail at 4", "1, 2"), ("say ab; fail at 2", "ab")]
)
def test_a_failure_comes_in_place_of_its_token(script: str, before: str) -> None:
    session = Session(script)
    assert "".join(chr(session.step()) for _ in before) == before
    with pytest.raises(RunnerFailed):
        session.step()


def test_delay_precedes_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert _answer("say ab; delay 0.25") == "ab"
    assert slept == [0.25] * 3


def test_hold_keeps_the_gil_once_before_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[float] = []
    monkeypatch.setattr(scripted, "hold_lock", held.append)
    session = Session("say abc; hold 1.5 at 1")
    seen = [(chr(session.step()), list(held)) for _ in range(3)]
    assert seen == [("a", []), ("b", [1.5]), ("c", [1.5])]


def test_crash_ends_the_process_silently() -> None:
    program = """
import atexit
from genai_server.engine.runners.base import open_bare, read_all
from genai_server.engine.runners.scripted import ScriptedRunner
atexit.register(print, "left in order")
read_all(runner := ScriptedRunner(), [open_bare(runner, list(b"crash at 0\\n\\x04"), 20)])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (70, b"", b"")


# runtime options


def test_terminated_sequence_continues_after_recovery() -> None:
    session = Session("say abc")
    assert session.step() == ord("a")
    session.runner.set_runtime_option(0, "terminate_session", "1")
    for _ in range(2):
        with pytest.raises(Terminated):
            session.step()
    session.runner.set_runtime_option(0, "terminate_session", "0")
    assert session.answer() == "bc"


def test_each_profiled_pass_writes_one_named_file(tmp_path: Path) -> None:
    session = Session("say abc")
    session.step()
    session.runner.set_runtime_option(0, "enable_profiling", str(tmp_path / "slow"))
    session.step()
    assert [path.name.startswith("slow_") for path in tmp_path.glob("*.json")] == [True]
    session.runner.set_runtime_option(0, "enable_profiling", "0")
    session.step()
    assert len(list(tmp_path.iterdir())) == 1


def test_script_continues_behind_what_was_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1)
    bench.submit(1, "count 9", low_priority=True)
    for number, num_said in enumerate((0, 3, 11)):
        bench.step_until(lambda least=num_said: len(bench.text(1)) >= least)  # type: ignore[misc]
        bench.submit(10 + number, "say x")
        bench.run(10 + number)
    bench.run(1)
    assert bench.text(1) == "1, 2, 3, 4, 5, 6, 7, 8, 9"
