"""Transcribes recordings with whisper.cpp: a program for an environment with pywhispercpp.

    python whisper_cpp_loop.py MODEL_FILE THREADS

For each line of input, a JSON list of WAV files, it transcribes all of them and writes the seconds and the texts. The
library runs one recording at a time, on all threads.
"""

import json
import sys
import time
import wave

import numpy as np
from pywhispercpp.model import Model

model = Model(
    sys.argv[1],
    n_threads=int(sys.argv[2]),
    language="en",
    # As the server: greedy. Random weights are improbable, which would be tried again with higher temperatures.
    temperature_inc=0.0,
    no_speech_thold=1.0,
    print_progress=False,
    print_realtime=False,
)


def transcribe(path: str) -> str:
    with wave.open(path) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return "".join(segment.text for segment in model.transcribe(samples.astype(np.float32) / 32768))


print("ready", flush=True)
for line in sys.stdin:
    paths = json.loads(line)
    started = time.perf_counter()
    texts = [transcribe(path) for path in paths]
    print(json.dumps({"seconds": time.perf_counter() - started, "texts": texts}), flush=True)
