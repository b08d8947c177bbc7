"""A deterministic runner without a model, for tests and for measuring the cost of the server itself.

Tokens are the bytes of UTF-8 text (text/tokenizer.py has the corresponding tokenizer). Token 256 ends an answer, byte 4
ends a prompt. The last line of a prompt has commands, separated by semicolons, that say what the sequence does:

    say TEXT         answer with the text, in which ⏎ is a line break (the default: repeat the line)
    count N          answer with "1, 2, …, N"
    delay S          take S seconds for each forward pass
    hold S at N      before output token N, hold the GIL for S seconds, as some library calls do
    fail at N        raise RunnerFailed instead of output token N
    break at N       the same, and in all passes of all sequences from then on
    crash at N       end the process at once instead of output token N

Programs may add text to a prompt after what a user has typed. Therefore a line `script: COMMANDS` anywhere in the
prompt is used instead of the last line, and a line `script after WORD: COMMANDS` if WORD appears after it, as in the
result of a tool. Of several such lines, the last one is used.

An adapter is a text file, whose first line is put before each answer.
"""

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections import abc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from genai_server.engine.abilities import Abilities
from genai_server.engine.runners.base import Runner, Terminated
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed, RunnerFailed
from genai_server.messages.generation_request import ModelInfo, Sampling
from genai_server.model_files.pooling_model import PoolingModel

EOS = 256
END_OF_PROMPT = 4
_COMMANDS = {
    "say": re.compile(r"say (?P<argument>.+)"),
    "count": re.compile(r"count (?P<argument>\d+)"),
    "delay": re.compile(r"delay (?P<argument>\d+(\.\d+)?)"),
    "hold": re.compile(r"hold (?P<argument>\d+(\.\d+)?) at (?P<at>\d+)"),
    "fail": re.compile(r"fail at (?P<at>\d+)"),
    "break": re.compile(r"break at (?P<at>\d+)"),
    "crash": re.compile(r"crash at (?P<at>\d+)"),
}
_MARKED = re.compile(r"^[ \t]*script(?: after (?P<word>\S+))?: (?P<commands>.+)$", re.MULTILINE)
LINE_BREAK = "⏎"


class ScriptedSequence:
    """A running sequence of a ScriptedRunner: the commands in its prompt, and the answer that it gives.

    `sequence` has the prompt, and the text `first` is put before the answer. The command `break` calls `break_runner`,
    which makes all later passes fail.
    """

    def __init__(self, sequence: Sequence, first: bytes, break_runner: Callable[[], None]) -> None:
        self.break_runner = break_runner
        self.num_unread = len(sequence.tokens)  # to read before the next token
        self.has_script = sequence.request.prompt[-1] == END_OF_PROMPT
        self.delay = 0.0
        self.events: dict[int, list[Callable[[], None]]] = {}
        self.num_produced = sequence.num_produced
        self.terminated = False
        self.profile = "0"
        line = _commands(bytes(sequence.request.prompt[:-1]).decode(errors="replace").strip())
        self.answer = line.encode()
        for part in line.split(";"):
            for verb, command in _COMMANDS.items():
                match = command.fullmatch(part.strip())
                if match:
                    self._add(verb, match.groupdict())
        self.answer = first + self.answer

    def _add(self, verb: str, groups: dict[str, str]) -> None:
        argument = groups.get("argument", "")
        if verb == "say":
            self.answer = argument.replace(LINE_BREAK, "\n").encode()
        elif verb == "count":
            self.answer = ", ".join(str(n) for n in range(1, int(argument) + 1)).encode()
        elif verb == "delay":
            self.delay = float(argument)
        else:
            actions: dict[str, Callable[[], None]] = {
                "hold": lambda: hold_lock(float(argument)),
                "fail": _fail,
                "break": self.break_runner,
                "crash": lambda: os._exit(70),
            }
            self.events.setdefault(int(groups["at"]), []).append(actions[verb])

    def next_token(self) -> int:
        """Return the next token of the answer, after running the commands in the prompt that belong to it, such as to
        sleep or to fail. Raises RunnerFailed if a command says so.
        """
        if self.delay:
            time.sleep(self.delay)
        for event in self.events.get(self.num_produced, []):
            event()
        token = self.answer[self.num_produced] if self.num_produced < len(self.answer) else EOS
        self.num_produced += 1
        return token


class ScriptedRunner(Runner):
    """A runner without a model, for tests and for measuring the cost of the server itself. Commands in each prompt's
    text say what it answers, how long passes take, and when they fail.
    """

    def __init__(self, context_length: int = 4096) -> None:
        self.model = ModelInfo(context_length, vocab_size=257, eos_token_ids=[EOS], defaults=Sampling())
        self.abilities = Abilities("generator", adapters=True)
        self._sequences: dict[int, ScriptedSequence] = {}
        self._is_broken = False

    def load_adapter(self, path: Path) -> bytes:
        try:
            return path.read_text(encoding="utf-8").partition("\n")[0].encode()
        except (OSError, ValueError) as error:
            raise AdapterLoadFailed(f"{path} cannot be read: {error}") from None

    def open(self, sequence: Sequence) -> int:
        self._sequences[sequence.id] = ScriptedSequence(sequence, self._adapter(sequence) or b"", self._break)
        return 0

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        if self._is_broken:
            _fail()
        (chunk,) = chunks
        # All tokens of a prompt are equally likely.
        logits = np.zeros((chunk.num_tokens if chunk.positions else 1, 257), np.float32)
        logits[-1] = self._last_logits(chunk.sequence.id, chunk.model_tokens)
        return [Scores(logits)]

    def _last_logits(self, sequence: int, tokens: abc.Sequence[int]) -> Logits:
        state = self._sequences[sequence]
        if state.terminated:
            raise Terminated("scripted session is terminated")
        if state.profile != "0":
            _write_profile(state.profile)
        state.num_unread -= len(tokens)
        logits = np.zeros(257, np.float32)
        if state.num_unread <= 0 and state.has_script:
            logits[state.next_token()] = 10.0
        return logits

    def _break(self) -> None:
        self._is_broken = True
        _fail()

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        state = self._sequences[sequence]
        if option == "terminate_session":
            state.terminated = value == "1"
        else:
            state.profile = value

    def close(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)


class ScriptedPooledRunner(ScriptedRunner):
    """A runner without a model for embeddings or reranking, for tests. Its vectors or scores depend only on how often a
    text has each byte.
    """

    def __init__(self, pooling: PoolingModel) -> None:
        super().__init__()
        self._pooling = pooling
        self.model = ModelInfo(pooling.max_tokens, vocab_size=257, eos_token_ids=[], defaults=Sampling())
        self.abilities = Abilities("pooled", pools=True)

    def open(self, sequence: Sequence) -> int:
        return sequence.num_pooled

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        return [Scores(vectors=self._vectors(chunk)) for chunk in chunks]

    def _vectors(self, chunk: ScheduledChunk) -> Logits:
        dimensions = self._pooling.dimensions or 1
        ends = np.cumsum([text.num_tokens for text in chunk.texts])
        parts = np.split(np.array(chunk.tokens, np.int64), ends[:-1])
        counts = np.stack([np.bincount(part % dimensions, minlength=dimensions) for part in parts])
        return np.asarray(counts / np.linalg.norm(counts, axis=1, keepdims=True), np.float32)


def _commands(prompt: str) -> str:
    """Return the part of a prompt that has the commands to run: those after the last suitable word `script`, or the
    last line.
    """
    for match in reversed(list(_MARKED.finditer(prompt))):
        if match["word"] is None or match["word"] in prompt[match.end() :]:
            return match["commands"]
    return prompt.rpartition("\n")[2]


def hold_lock(seconds: float) -> None:
    """Sleep for some seconds without releasing the GIL (Python's global interpreter lock), as a long call of a library
    may do. No signal ends the sleep early.
    """
    if sys.platform == "win32":
        ctypes.PyDLL("kernel32").Sleep(int(seconds * 1000))
    else:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fail() -> None:
    raise RunnerFailed("scripted failure")


def _write_profile(prefix: str) -> None:
    """Write a file that looks like a profile that ONNX Runtime has written of a pass. The file's path begins with
    `prefix`.
    """
    now = time.time()
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
    Path(f"{prefix}_{stamp}_{int(now * 1000) % 1000:03}.json").write_text(json.dumps([]), encoding="utf-8")
