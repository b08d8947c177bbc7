"""What Transformers makes of a checkpoint in 32 bits: a program that runs in `.venv-models`.

    python -m _models.transformers_program MODEL_DIR|FILE.gguf <REQUESTS >ANSWERS

Each line of the input and the output is JSON. `{"ids": […]}` is answered by the log probability of each token but the
first, and `{"texts": […]}` by their vectors, of a model of sentence-transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    path = Path(sys.argv[1])
    model: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "texts" in asked:
            from sentence_transformers import SentenceTransformer

            answer = SentenceTransformer(str(path), device="cpu").encode(asked["texts"]).tolist()
        else:
            model = model or load(path)
            answer = scores(model, asked["ids"])
        print(json.dumps(answer), flush=True)


def load(path: Path) -> Any:
    """A decoder in 32 bits."""
    named: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **named).eval()


@torch.no_grad()  # type: ignore[untyped-decorator]
def scores(model: Any, ids: list[int]) -> list[float]:
    """The log probability of each token but the first."""
    found = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
    return [float(value) for value in found[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]]


if __name__ == "__main__":
    main()
