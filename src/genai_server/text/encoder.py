"""Encodes long texts in a thread, so that the event loop goes on meanwhile."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from genai_server.text.tokenizer import Tokenizer

# Characters that take the tokenizer a few milliseconds at most.
SHORT_TEXT = 8_000
# Long texts at a time; others wait.
_THREADS = 2


class Encoder:
    """Encodes short texts at once and long ones in a thread; belongs to the event loop, and must be closed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(_THREADS, "tokenizer")

    async def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """The token ids of a text in which special tokens are recognised."""
        if len(text) <= SHORT_TEXT:
            return self._tokenizer.encode(text, add_special=add_special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self._tokenizer.encode(text, add_special=add_special))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
