"""Worker process that compiles untrusted grammars, so that a crash affects nothing else.

A question contains a grammar; the answer is the compiler's error message, or null. The process imports little, reads no
environment variables and holds no secrets.
"""

from typing import Any

from genai_server.grammar_checker.compiler import CHECK_STACK, complaint, in_short, stack
from genai_server.workers.worker_loop import Answer, answer_questions

# Maximum bytes for checks, in addition to the process's memory at its start. The largest useful grammars take 50 MB.
MAX_MEMORY = 512 * 1024 * 1024


def main() -> None:
    """Compile grammars for the parent process until that exits."""
    with stack(CHECK_STACK):
        answer_questions(_prepare, MAX_MEMORY)


def _prepare() -> Answer:
    complaint('start: ""')  # one-time work of the library is done before the first check is timed
    return _answer


def _answer(question: dict[str, Any], data: bytes) -> dict[str, Any]:
    try:
        return {"error": complaint(question["grammar"])}
    except BaseException as error:  # a panic of the library is not an Exception
        return {"error": in_short(f"the compiler fails: {error}")}


if __name__ == "__main__":
    main()
