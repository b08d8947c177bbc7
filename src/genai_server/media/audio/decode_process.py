"""Worker process that decodes untrusted recordings into files of PCM samples.

The argument is a specification in JSON. A question names the recording's file, the file to write, and how many seconds
of audio may be written. The answer is the number of samples and their peak amplitude, or that the recording has more
seconds, or the reason why the recording is refused or the samples cannot be written. The process reads no environment
variables and holds no secrets.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from genai_server.media.audio.decoding import LongerRecording, UnusableRecording, decode
from genai_server.workers.worker_loop import Answer, answer_questions

# Maximum bytes in addition to the process's memory at its start: for anything, and for each second that a recording may
# have. An MP4 file has an index with an entry for each frame.
_MEMORY = 512 * 1024 * 1024
_MEMORY_PER_SECOND = 8 * 1024


def main() -> None:
    """Decode recordings for the parent process until that exits."""
    spec = json.loads(sys.argv[1])
    max_seconds = spec["max_seconds"]

    def prepare() -> Answer:
        return lambda question, data: _answer(question, max_seconds)

    answer_questions(prepare, _MEMORY + _MEMORY_PER_SECOND * max_seconds, gives_way=spec["gives_way"])


def _answer(question: dict[str, Any], max_seconds: int) -> dict[str, Any]:
    try:
        with Path(question["path"]).open("rb") as source, Path(question["target"]).open("wb") as target:
            size, seconds = os.fstat(source.fileno()).st_size, question["seconds"]
            num_samples, peak = decode(source, target, size, max_seconds, seconds)
    except LongerRecording:
        return {"is_longer": True}
    except UnusableRecording as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "needs more memory than a recording may take"}
    except OSError as error:
        return {"unavailable": error.strerror or type(error).__name__}
    return {"num_samples": num_samples, "peak": peak}


if __name__ == "__main__":
    main()
