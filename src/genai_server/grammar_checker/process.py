"""The grammar checker: a process that compiles untrusted grammars, so that they can crash nothing else.

Standard input carries grammars, one line of JSON each, and stays open while the API process lives. At its end the
process exits at once, even during a check. Standard output carries one line of JSON when the process is
ready, and then one for each grammar: the compiler's error message, or null.

The process imports little, reads no environment and holds no secrets.
"""

import json
import os
import sys
import threading
from queue import SimpleQueue
from typing import BinaryIO

from genai_server.child_process import ignore_group_signals, limit_memory, private_standard_output
from genai_server.grammar_checker.compiler import CHECK_STACK, complaint, in_short, stack
from genai_server.process_memory import release_large_blocks_at_once, share_heaps

# Maximum bytes for checks, in addition to the process's memory at its start. The largest useful grammars take 50 MB.
MAX_MEMORY = 512 * 1024 * 1024


def main() -> None:
    """Check grammars until the parent exits."""
    answers = private_standard_output()
    ignore_group_signals()
    release_large_blocks_at_once()
    share_heaps()
    limit_memory(MAX_MEMORY)
    grammars: SimpleQueue[bytes] = SimpleQueue()
    with stack(CHECK_STACK):
        threading.Thread(target=_check, args=(grammars, answers), daemon=True).start()
    for line in sys.stdin.buffer:
        grammars.put(line)
    os._exit(0)  # sys.exit would wait for the other thread, which may be in native code for long


def _check(grammars: "SimpleQueue[bytes]", answers: BinaryIO) -> None:
    complaint('start: ""')  # one-time work of the library is done before the first check is timed
    _tell(answers, None)
    # A crashing library prints its input to standard error; logs must not quote requests.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        grammar = json.loads(grammars.get())
        try:
            found = complaint(grammar)
        except BaseException as error:  # a panic of the library is not an Exception
            found = in_short(f"the compiler fails: {error}")
        _tell(answers, found)


def _tell(answers: BinaryIO, found: str | None) -> None:
    answers.write(json.dumps(found).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
