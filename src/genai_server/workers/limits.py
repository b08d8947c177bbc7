"""The limits of the worker pool."""

from dataclasses import dataclass
from typing import Self

from genai_server.config.settings import Settings


@dataclass(frozen=True)
class WorkerLimits:
    """How many tasks of the pool run at a time, how much work may wait, and how much disk space tasks may use."""

    # Tasks that run at a time; see TaskQueue.
    processes: int = 2
    # What may wait for each tenant: pixels of images, seconds of recordings and audio clips, bytes of grammars.
    waiting_pixels: int = 2_000_000_000
    waiting_seconds: int = 345_600
    waiting_bytes: int = 8 * 1024 * 1024
    # Bytes of disk space for decoded recordings and prepared images and audio clips.
    space: int = 2 * 1024 * 1024 * 1024

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits from the server's settings."""
        return cls(
            settings.preparation_processes,
            settings.max_waiting_pixels,
            settings.max_waiting_audio_seconds,
            settings.max_waiting_grammar_bytes,
            settings.prepared_bytes,
        )
