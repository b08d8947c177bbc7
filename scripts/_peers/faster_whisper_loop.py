"""Transcribes recordings with faster-whisper: a program for an environment with it.

    python faster_whisper_loop.py MODEL_DIR THREADS

For each line of input, a JSON list of paths, it transcribes all of them at once and writes the seconds and the texts.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="int8", cpu_threads=int(sys.argv[2]))


def transcribe(path: str) -> str:
    """The text, greedy, as the server's default."""
    segments, _ = model.transcribe(path, language="en", beam_size=1, vad_filter=True)
    return "".join(segment.text for segment in segments)


print("ready", flush=True)
for line in sys.stdin:
    paths = json.loads(line)
    started = time.perf_counter()
    with ThreadPoolExecutor(len(paths)) as pool:
        texts = list(pool.map(transcribe, paths))
    print(json.dumps({"seconds": time.perf_counter() - started, "texts": texts}), flush=True)
