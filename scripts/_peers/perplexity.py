"""The perplexity of a served model, counted in the same way for all servers: as llama.cpp's tool counts it."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from .environment import PeerUnavailable
from .peer import THREADS

# A text that no model has seen, and that lies in this package.
TEXT = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
# Windows are read one by one; only the tokens of their second halves count, which have enough to go by.
_WINDOW, _MAX_WINDOWS = 512, 8
_SECONDS = 1200.0
_RESULT = re.compile(r"Final estimate: PPL = ([\d.]+)")


def windows(model: Path) -> list[list[int]]:
    """The text in windows of tokens of a model directory's tokenizer; each begins as the tokenizer begins a text."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = TEXT.read_text(encoding="utf-8")
    ids = tokenizer.encode(text).ids
    has_first = ids[1:] == tokenizer.encode(text, add_special_tokens=False).ids
    number = min(len(ids) // _WINDOW, _MAX_WINDOWS)
    found = [ids[start : start + _WINDOW] for start in range(0, number * _WINDOW, _WINDOW)]
    return [[ids[0], *window[1:]] for window in found] if has_first else found


def by_echo(url: str, model: Path) -> float:
    """The perplexity by the log probabilities of prompts, which servers of completions give. Raises PeerUnavailable."""
    scores: list[float] = []
    for window in windows(model):
        body = {"prompt": window, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        try:
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=_SECONDS).raise_for_status().json()
            found = answer["choices"][0]["logprobs"]["token_logprobs"]
        except (httpx.HTTPError, LookupError, TypeError) as error:
            raise PeerUnavailable(f"its perplexity is not known: {error}") from None
        scores += found[_WINDOW // 2 : _WINDOW]
    return perplexity(scores)


def by_tool(tool: Path, weights: Path) -> float:
    """The perplexity by llama.cpp's tool. Raises PeerUnavailable."""
    options = ["--ctx-size", _WINDOW, "--chunks", _MAX_WINDOWS, "--threads", THREADS]
    command = [str(word) for word in [tool, "--model", weights, "--file", TEXT, *options]]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS)
    found = _RESULT.search(done.stdout + done.stderr)
    if found is None:
        raise PeerUnavailable(f"{tool.name} ended with status {done.returncode} and without a result")
    return float(found[1])


def perplexity(scores: Sequence[float]) -> float:
    """Of log probabilities."""
    return math.exp(-sum(scores) / len(scores))
