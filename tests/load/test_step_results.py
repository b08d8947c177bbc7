"""Steps end as one of the kinds, whatever happens in them, and the file has all results at any time."""

import asyncio
import json
from pathlib import Path

import pytest
from _load.step_results import Broken, Figures, Result, ResultBook, Skipped, run_step


async def works() -> Figures:
    return {"speed": 3, "message": "fine"}


async def skips() -> Figures:
    raise Skipped("not here")


async def breaks() -> Figures:
    raise Broken("wrong", {"seen": 1})


async def crashes() -> Figures:
    raise OSError("gone")


async def hangs() -> Figures:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize(
    ("step", "status", "message", "figures"),
    [
        (works, "ok", "fine", {"speed": 3}),
        (skips, "skipped", "not here", {}),
        (breaks, "failed", "wrong", {"seen": 1}),
        (crashes, "failed", "OSError: gone", {}),
        (hangs, "failed", "not finished within 0 s", {}),
    ],
)
def test_every_step_has_a_result(step: object, status: str, message: str, figures: Figures) -> None:
    result = asyncio.run(run_step("one", "step", 0.05, step))  # type: ignore[arg-type]
    assert (result.status, result.message, result.figures) == (status, message, figures)


def test_the_file_is_complete_after_each_result(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    book = ResultBook(file, {"device": "cpu"})
    assert json.loads(file.read_text()) == {"device": "cpu", "results": []}
    book.note(Result("one", "start", "ok", 1.0, figures={"path": tmp_path}))
    assert json.loads(file.read_text())["results"][0]["figures"] == {"path": str(tmp_path)}
    assert list(book.of("one")) == ["start"]
