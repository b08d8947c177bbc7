"""Ask a model the same greedy questions alone, again, together, with drafts, with cached prefixes, and as exact ones.

Prints one line, which counts the answers whose tokens or log probabilities are not those of the first time, and ends
with status 1 if there are any. Where `batching.exact` in /healthz is true, there are none.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from _load.server import DEMO, HOST, run_server

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write a haiku about the sea.",
    "Explain photosynthesis in two sentences.",
    "What is 17 + 25?",
    "List the planets of the solar system.",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Tell me a joke about programmers.",
    "What does HTTP stand for?",
    "Grüße aus Köln! Was ist ein Fluss?",
    "日本の首都はどこですか？",
    "Кто написал «Войну и мир»?",
    "¿Cuál es la capital de España?",
    "🙂🙃 What do these emoji mean?",
    "Reply with three emoji about food 🍕",
    "naïve café — “quotes” … ½ × ² €",
    "Write a Python function that reverses a string.",
    "Fix: SELECT * FORM users WHERE id = 1;",
    "Write a bash loop from 1 to 5.",
    "a",
    "?!?!?!",
)
_SECONDS_TO_START, _TIMEOUT = 300.0, 300.0
# The token and its log probability at each place of an answer.
Answer = list[tuple[str, float]]
_NO_CACHE: dict[str, Any] = {"cache_prompt": False}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=DEMO, metavar="MODEL_DIR")
    parser.add_argument("--tokens", type=int, default=24, help="of each answer (24)")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help=f"so many of them ({len(QUESTIONS)})")
    arguments = parser.parse_args()
    settings = {"GENAI_MODEL_DIR": str(arguments.model_dir.absolute())}
    with (
        tempfile.TemporaryDirectory(prefix="repeats") as folder,
        run_server(Path(folder), settings, _SECONDS_TO_START) as server,
        httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=_TIMEOUT) as client,
    ):
        questions = QUESTIONS[: arguments.questions]
        counts = count_differences(client, questions, arguments.tokens)
    shown = ", ".join(f"{way} {count}" for way, count in counts.items())
    sys.stdout.write(f"of {len(questions)} answers differ: {shown}\n")
    return int(any(counts.values()))


def count_differences(client: httpx.Client, questions: Sequence[str], num_tokens: int) -> dict[str, int]:
    """How many answers differ from those of the first time, by the way in which the questions are asked."""

    def ask(at_once: int, **fields: Any) -> list[Answer]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda question: answer(client, question, num_tokens, fields), questions))

    first = ask(1, seed=1, **_NO_CACHE)
    ask(1)  # so that prefixes are cached
    others = {
        "again": ask(1, seed=1, **_NO_CACHE),
        "eight at once": ask(8, seed=1, **_NO_CACHE),
        "all at once, with drafts": ask(len(questions), **_NO_CACHE),
        "with drafts": ask(1, **_NO_CACHE),
        "with cached prefixes": ask(1),
        "exact": ask(1, exact=True, **_NO_CACHE),
    }
    return {way: sum(one != other for one, other in zip(first, found, strict=True)) for way, found in others.items()}


def answer(client: httpx.Client, question: str, num_tokens: int, fields: dict[str, Any]) -> Answer:
    """The greedy answer to a question."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": num_tokens, "temperature": 0}
    response = client.post("/v1/chat/completions", json=body | {"logprobs": True} | fields).raise_for_status()
    places = response.json()["choices"][0]["logprobs"]["content"]
    return [(place["token"], place["logprob"]) for place in places]


if __name__ == "__main__":
    sys.exit(main())
