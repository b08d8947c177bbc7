"""Encodes the texts of a file with sentence-transformers on ONNX Runtime, once for each line of its input, and writes
the seconds: a program for an environment with it.

    python sentence_transformers_loop.py MODEL_DIR TEXTS THREADS
"""

import json
import sys
import time
from pathlib import Path

import onnxruntime
from sentence_transformers import SentenceTransformer

texts = json.loads(Path(sys.argv[2]).read_text())
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
# It exports the model itself, as its documentation says.
model = SentenceTransformer(sys.argv[1], backend="onnx", device="cpu", model_kwargs={"session_options": options})
print("ready", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    vectors = model.encode(texts, batch_size=32)
    print(json.dumps({"seconds": time.perf_counter() - started, "first": vectors[0].tolist()}), flush=True)
