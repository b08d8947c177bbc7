"""The main loop of a worker process, which handles untrusted input for the worker pool (`answer_questions`). The pool's
side of the exchange is in process.py.

Each task is a question, which the parent sends on standard input: a line of JSON, followed by as many bytes as its
member `size` says. Standard input stays open while the parent lives. On standard output the process writes one line of
JSON when it is ready, and one line as the answer to each question.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, BinaryIO

from genai_server.errors import in_one_line
from genai_server.system.processes import ignore_group_signals, limit_memory, private_standard_output
from genai_server.system.resources import release_large_blocks_at_once, share_heaps

# Answers a question with its bytes.
Answer = Callable[[dict[str, Any], bytes], dict[str, Any]]
# A process with the default value of 0 gets some nine times as much processor time.
_NICE = 10
_Questions = SimpleQueue[tuple[dict[str, Any], bytes]]


def answer_questions(prepare: Callable[[], Answer], memory: int, *, gives_way: bool = False) -> None:
    """Answer questions on standard input until the parent process exits. Called by the main program of each kind of
    worker process.

    `prepare` returns the function that answers a question; if it raises an error, the parent receives the reason and no
    question is answered. `memory` is the number of bytes that the process may use in addition to those that it uses
    after `prepare`. `gives_way` lowers the process's CPU priority.
    """
    answers = os.fdopen(private_standard_output(), "wb")
    ignore_group_signals()
    release_large_blocks_at_once()
    share_heaps()
    if gives_way and sys.platform != "win32":
        os.nice(_NICE)
    questions: _Questions = SimpleQueue()
    threading.Thread(target=_answer, args=(prepare, memory, questions, answers), daemon=True).start()
    for line in sys.stdin.buffer:
        question = json.loads(line)
        questions.put((question, sys.stdin.buffer.read(question["size"])))
    os._exit(0)  # sys.exit would wait for the other thread, which may be in native code for long


def _answer(prepare: Callable[[], Answer], memory: int, questions: _Questions, answers: BinaryIO) -> None:
    try:
        answer = prepare()
    except BaseException as error:
        _send(answers, {"failed": in_one_line(error)})
        return
    limit_memory(memory)
    _send(answers, {})
    # A library may print its input to standard error; logs must not quote requests.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        while True:
            _send(answers, answer(*questions.get()))
    finally:
        os._exit(1)  # the parent need not wait for an answer


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()
