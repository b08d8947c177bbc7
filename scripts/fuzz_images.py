"""Give the reader of images damaged and odd files: cut, changed, of other types, with wrong sizes, with many pixels.

Each of them must be prepared, or refused with an error that names its field. No process may die, nothing may take
longer than a request may wait, and an intact image must be read at the end. Findings are reported with the numbers that
reproduce them. Exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from _load.hostile_images import hostile_image
from _models.table import table

from genai_server.config.settings import Settings
from genai_server.errors import InvalidField
from genai_server.images.reader import Images, ImageSource
from genai_server.vision_model import read_vision_model

_MODEL = Path(__file__).resolve().parents[1] / "tests" / "built_models" / "qwen-3-vl-images"
_CLIENTS = 3
_MAX_SHOWN = 20
_FIELD = "images[0]"
_BEGIN = f"{_FIELD}: the image "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="files in all (20000)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this file of the seed")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    numbers = range(arguments.count) if arguments.only is None else range(arguments.only, arguments.only + 1)
    fuzzer = Fuzzer(arguments.seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(fuzzer.run(numbers, Path(folder)))
    rows = [(name, how, str(number)) for (name, how), number in sorted(fuzzer.results.items())]
    print(table([("file", "result", "number"), *rows], markdown=arguments.markdown), end="\n\n")
    print(f"{time.monotonic() - started:.0f} s, seed {arguments.seed}, processes' results {dict(fuzzer.counted)}")
    print(f"longest {fuzzer.slowest[0]:.2f} s (number {fuzzer.slowest[1]}), too long: {fuzzer.late or 'none'}")
    for complaint in fuzzer.broken[:_MAX_SHOWN]:
        print(f"BROKEN: {complaint}")
    print(f"broken promises: {len(fuzzer.broken) or 'none'}")
    sys.exit(bool(fuzzer.broken))


class Fuzzer:
    """Sends files, and keeps what became of them."""

    def __init__(self, seed: int) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        # By the reader itself.
        self.counted: Counter[str] = Counter()
        self.broken: list[str] = []
        # Seconds and number of a file.
        self.slowest = (0.0, 0)
        # Numbers of the files that took too long.
        self.late: list[int] = []
        self._seed = seed

    async def run(self, numbers: range, folder: Path) -> None:
        """Send the files of these numbers, some at the same time."""
        left = iter(numbers)
        model = read_vision_model(_MODEL)
        assert model is not None

        def count(result: str) -> None:
            self.counted[result] += 1

        with closing(Images(Settings.model_validate({"image_cache_bytes": 0}), folder, count)) as images:

            async def read(number: int, data: bytes) -> str:
                url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
                try:
                    (image,) = await images.read(model, [ImageSource(url, number % 3 == 0, _FIELD)])
                except InvalidField as error:
                    if error.param != _FIELD or not error.message.startswith(_FIELD):
                        self.broken.append(f"{number}: {error.param}: {error.message}")
                    words = error.message.removeprefix(_BEGIN).partition(",")[0].partition(":")[0]
                    return f"refused: {words}"[:80]
                if not image.path.stat().st_size or model.image_token_id not in image.expansion:
                    self.broken.append(f"{number}: {image}")
                return "prepared"

            async def client() -> None:
                for number in left:
                    name, data = await asyncio.to_thread(hostile_image, self._seed, number)
                    started = time.monotonic()
                    try:
                        result = await read(number, data)
                    except Exception as error:
                        result = type(error).__name__
                        self.broken.append(f"{number}: {name}: {result}: {error}")
                    self._note(number, name, result, time.monotonic() - started)

            await asyncio.gather(*(client() for _ in range(_CLIENTS)))

    def _note(self, number: int, name: str, result: str, seconds: float) -> None:
        self.results[name, result] += 1
        self.slowest = max(self.slowest, (seconds, number))
        if "GENAI_IMAGE_TIMEOUT" in result:
            self.late.append(number)
        if self.counted["crashed"]:
            self.broken.append(f"{number}, or one at the same time, crashed a process")
            self.counted["crashed"] = 0


if __name__ == "__main__":
    main()
