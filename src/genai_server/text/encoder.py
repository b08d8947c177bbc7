"""Encodes long texts in a process of its own.

The library's tokenizer holds Python's lock, and its time grows with the square of a word's length: a word of 100,000
letters takes it seconds, in which the event loop could serve nobody.
"""

import asyncio
import multiprocessing
import os
import re
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from genai_server.errors import InvalidField
from genai_server.text.tokenizer import ModelTokenizer, Tokenizer

# Up to here a text takes the tokenizer a few milliseconds at most: so many characters, and so many in one word.
SHORT_TEXT = 32_000
SHORT_WORD = 2_000
# A word of this length takes it about a tenth of a second.
LONGEST_WORD = 16_000
_LONG_WORD = re.compile(rf"\w{{{SHORT_WORD + 1},}}")


class Encoder:
    """Encodes short texts at once and long ones elsewhere; belongs to the event loop, and must be closed."""

    def __init__(self, tokenizer: Tokenizer, model_dir: Path) -> None:
        self._tokenizer = tokenizer
        self._model_dir = model_dir
        self._pool: ProcessPoolExecutor | None = None

    async def encode(self, text: str) -> list[int]:
        """The token ids of a text. Raises InvalidField for a word that would take too long."""
        longest = max((len(word) for word in _LONG_WORD.findall(text)), default=0)
        if longest > LONGEST_WORD:
            raise InvalidField(
                f"the messages have a word of {longest} characters; at most {LONGEST_WORD} can be encoded",
                param="messages",
            )
        if not isinstance(self._tokenizer, ModelTokenizer) or (len(text) <= SHORT_TEXT and not longest):
            return self._tokenizer.encode(text)
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), initializer=_load, initargs=(self._model_dir,)
            )
        return await asyncio.get_running_loop().run_in_executor(self._pool, _encode, text)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


_loaded: list[ModelTokenizer] = []


def _load(model_dir: Path) -> None:
    """In the process: load the tokenizer, and leave when the parent has died, for nothing else would tell."""
    _loaded.append(ModelTokenizer(model_dir))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()


def _encode(text: str) -> list[int]:
    return _loaded[0].encode(text)
