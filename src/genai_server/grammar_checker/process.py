"""The grammar checker: a process that compiles what strangers send, so that only it dies of that.

Its standard input brings grammars, each as a line of JSON, and stays open for as long as the API process lives: its end
is the order to leave, which is obeyed at once, also in the middle of a check. Its standard output carries one line of
JSON when it is ready, and then one for each grammar: what the compiler says against it, or null.

It imports little, reads no environment and holds no secret.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from genai_server.child_process import ignore_group_signals, private_standard_output
from genai_server.grammar_checker.compiler import CHECK_STACK, complaint, in_short, stack
from genai_server.malloc import give_back_large_blocks, share_heaps

# Bytes that checks may take, beside what the process has at its start. The largest grammars of use take 50 MB.
MOST_MEMORY = 512 * 1024 * 1024
_SECONDS_BETWEEN_LOOKS = 0.05
_TOO_MUCH_MEMORY = 70


def main() -> None:
    """Check until the parent leaves."""
    answers = private_standard_output()
    ignore_group_signals()
    give_back_large_blocks()
    share_heaps()
    limit_memory(MOST_MEMORY)
    grammars: SimpleQueue[bytes] = SimpleQueue()
    with stack(CHECK_STACK):
        threading.Thread(target=_check, args=(grammars, answers), daemon=True).start()
    for line in sys.stdin.buffer:
        grammars.put(line)
    os._exit(0)  # not sys.exit: the other thread may be in native code for long


def limit_memory(most: int) -> None:
    """End this process when it takes more than so many bytes beside what it has now: by the kernel on Linux, elsewhere
    by a thread that looks.
    """
    if sys.platform == "linux":
        import resource

        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = taken + most if hard == resource.RLIM_INFINITY else min(taken + most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    else:
        threading.Thread(target=watch_memory, args=(most,), daemon=True).start()


def watch_memory(most: int) -> None:
    """End this process once it has so many bytes more than now. Native code that compiles does not hold it up."""
    import psutil

    process = psutil.Process()
    limit = process.memory_info().rss + most
    while process.memory_info().rss < limit:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(_TOO_MUCH_MEMORY)


def _check(grammars: "SimpleQueue[bytes]", answers: BinaryIO) -> None:
    complaint('start: ""')  # whatever the library does only once is done before the first check is timed
    _tell(answers, None)
    # A library that dies says why on standard error, and quotes what it was given; no log quotes a request.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        grammar = json.loads(grammars.get())
        try:
            found = complaint(grammar)
        except BaseException as error:  # a panic of the library is no Exception
            found = in_short(f"the compiler fails: {error}")
        _tell(answers, found)


def _tell(answers: BinaryIO, found: str | None) -> None:
    answers.write(json.dumps(found).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
