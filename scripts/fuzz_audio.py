"""Give the readers of recordings damaged and odd files: cut, changed, chained, of other types, with absurd headers.

Each of them must be decoded and read, or refused with an error that names its field. No process may die, nothing may
take longer than a request may wait, and no file may be left. Findings are reported with the numbers that reproduce
them. Exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import closing
from pathlib import Path

from _load.file_fuzzer import FileFuzzer, fuzz, parsed
from _load.hostile_recordings import hostile_recording

from genai_server.audio.recordings import Recordings
from genai_server.config.settings import Settings
from genai_server.errors import InvalidField
from genai_server.messages.worker_tasks import TaskOwner
from genai_server.speech_model import read_speech_model
from genai_server.workers.limits import WorkerLimits
from genai_server.workers.pool import WorkerPool
from genai_server.workers.workers import Requester

_MODEL = Path(__file__).resolve().parents[1] / "tests" / "built_models" / "whisper"
_FIELD = "file"
_REQUESTER = Requester(TaskOwner())
# Windows of a recording.
_WINDOWS = 3


async def send(fuzzer: FileFuzzer, numbers: range, folder: Path) -> None:
    """Send the recordings of these numbers."""
    model = read_speech_model(_MODEL)
    assert model is not None

    settings = Settings.model_validate({})
    with (
        closing(WorkerPool(WorkerLimits.of(settings))) as pool,
        closing(Recordings(pool, settings, folder, fuzzer.count)) as recordings,
    ):

        async def read(number: int, data: bytes) -> str:
            file = folder / f"upload-{number}"
            file.write_bytes(data)
            try:
                with await recordings.open(model, file, _REQUESTER, param=_FIELD) as recording:
                    at, count = 0.0, 0
                    while count < _WINDOWS and (window := await recording.window(at)):
                        if not at <= window.start < window.end <= recording.duration or not window.path.stat().st_size:
                            fuzzer.broken.append(f"{number}: {window} from {at} on")
                        at, count = window.end, count + 1
                        del window
            except InvalidField as error:
                return fuzzer.refused(
                    number, error.param, error.message, _FIELD, f"{_FIELD} cannot be used: the recording "
                )
            return f"decoded, windows: {count}"

        await fuzzer.send(numbers, read)
        fuzzer.broken += [f"{path} is left" for path in await asyncio.to_thread(_files, folder)]


def _files(folder: Path) -> list[Path]:
    """Files with samples or features of recordings. A process that is ended while it starts leaves others, which the
    server removes with its own folder.
    """
    return [path for path in folder.rglob("*") if path.suffix in (".pcm", ".npz")]


if __name__ == "__main__":
    fuzz(
        parsed(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)),
        hostile_recording,
        "GENAI_AUDIO_TIMEOUT",
        send,
    )
