"""What Transformers makes of a checkpoint in 32 bits: a program that runs in `.venv-models`.

    python -m _models.transformers_program MODEL_DIR|FILE.gguf <REQUESTS >ANSWERS

Each line of the input and the output is JSON. `{"ids": […], "tokens": N}` is answered by the N tokens of a greedy
answer, `{"ids": […]}` by the log probability of each token but the first, and `{"recording": PATH}` by its transcript.
`{"texts": […]}` is answered by their vectors, of a model of sentence-transformers.
`{"convert": [PARTS…], "folder": DIR, "target": DIR}` converts a Whisper model of CTranslate2; MODEL_DIR is then `-`.
"""

from __future__ import annotations

import json
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoFeatureExtractor,
    AutoModelForCausalLM,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
)


def main() -> None:
    path = Path(sys.argv[1])
    model: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "convert" in asked:
            from _models.ctranslate2_whisper import convert

            convert([Path(part) for part in asked["convert"]], Path(asked["folder"]), Path(asked["target"]))
            answer: Any = None
        elif "texts" in asked:
            from sentence_transformers import SentenceTransformer

            answer = SentenceTransformer(str(path), device="cpu").encode(asked["texts"]).tolist()
        elif "recording" in asked:
            answer = transcript(path, Path(asked["recording"]))
        else:
            model = model or load(path)
            answer = greedy(model, asked["ids"], asked["tokens"]) if "tokens" in asked else scores(model, asked["ids"])
        print(json.dumps(answer), flush=True)


def load(path: Path) -> Any:
    """A decoder in 32 bits."""
    named: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    loader: Any = AutoModelForCausalLM
    return loader.from_pretrained(folder, dtype=torch.float32, **named).eval()


def greedy(model: Any, ids: list[int], number: int) -> list[int]:
    """The tokens of the greedy answer, to its end."""
    with torch.no_grad():
        made = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=number, temperature=None, top_p=None)
    return [int(token) for token in made[0, len(ids) :]]


def scores(model: Any, ids: list[int]) -> list[float]:
    """The log probability of each token but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
        found = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return [float(value) for value in found]


def transcript(path: Path, recording: Path) -> str:
    """What a Whisper model hears in a file of 16-bit samples, 16,000 of them a second."""
    with wave.open(str(recording)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 2**15
    loader: Any = AutoModelForSpeechSeq2Seq
    features = AutoFeatureExtractor.from_pretrained(path)(samples, sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        model = loader.from_pretrained(path, dtype=torch.float32).eval()
        made = model.generate(features.input_features, language="en", task="transcribe")
    return str(AutoTokenizer.from_pretrained(path).decode(made[0], skip_special_tokens=True)).strip()


if __name__ == "__main__":
    main()
