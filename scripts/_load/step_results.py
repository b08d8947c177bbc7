"""Named steps with deadlines, and a file of their results, which is complete after each of them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, FAILED, SKIPPED, NOT_REACHED = "ok", "failed", "skipped", "not reached"
Figures = dict[str, Any]
_LONGEST_LINE = 240


class Skipped(Exception):
    """A step does not apply; the message says why."""


class Broken(Exception):
    """A step has seen what must not be; `figures` are what it has measured until then."""

    def __init__(self, message: str, figures: Figures | None = None) -> None:
        super().__init__(message)
        self.figures = figures or {}


@dataclass(frozen=True)
class Result:
    """How a step of a configuration ended. `message` is the reason, or a remark."""

    configuration: str
    step: str
    status: str
    seconds: float = 0.0
    message: str = ""
    figures: Figures = field(default_factory=dict)

    def line(self) -> str:
        """A line for a terminal, without long figures."""
        short = {name: value for name, value in self.figures.items() if isinstance(value, (int, float, bool))}
        figures = " ".join(f"{name}={value:.4g}" for name, value in short.items())
        said = "; ".join(part for part in (" ".join(self.message.split()), figures) if part)
        what = f"{self.configuration:<14} {self.step:<12} {self.status:<11} {self.seconds:6.1f} s"
        return f"{what}  {said[:_LONGEST_LINE]}".rstrip()


class ResultBook:
    """All results so far, in the order of the steps; `about` describes the run in the file."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.results: list[Result] = []
        self._path = path
        self._about = dict(about)
        self._write()

    def note(self, result: Result) -> None:
        """Print a result, and write it to the file."""
        self.results.append(result)
        print(result.line(), flush=True)
        self._write()

    def of(self, configuration: str) -> dict[str, Result]:
        """A configuration's results, by step."""
        return {result.step: result for result in self.results if result.configuration == configuration}

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        content = {**self._about, "results": [asdict(result) for result in self.results]}
        new.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
        os.replace(new, self._path)


async def run_step(configuration: str, name: str, seconds: float, step: Callable[[], Awaitable[Figures]]) -> Result:
    """Run a step for at most `seconds`. Its figures may have a `message`. It never raises an Exception."""
    began = time.monotonic()
    figures: Figures = {}
    status, message = FAILED, ""
    try:
        async with asyncio.timeout(seconds):
            figures = await step()
        status, message = OK, str(figures.pop("message", ""))
    except Skipped as reason:
        status, message = SKIPPED, str(reason)
    except Broken as broken:
        message, figures = str(broken), broken.figures
    except TimeoutError:
        message = f"not finished within {seconds:.0f} s"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    return Result(configuration, name, status, round(time.monotonic() - began, 3), message, figures)
