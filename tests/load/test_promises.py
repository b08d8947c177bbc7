"""The soak, invalid requests, hostile grammars, images and recordings, each in a short form.

docs/measuring.md names the long forms. Limits are wide where they depend on the machine: for memory, because caches
still fill up in so short a time, and for /healthz, because other programs take its cores.
"""

import sys

import pytest

from tests.running_server import run_python

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")]


def run(script: str, *options: str) -> None:
    assert "broken promises: none" in run_python(f"scripts/{script}.py", *options)


@pytest.mark.timeout(400)
def test_each_request_has_one_answer_under_load_and_kills() -> None:
    run("soak", "--minutes", "0.1", "--seed", "1", "--growth", "0.25", "--pulse", "30")


@pytest.mark.timeout(400)
def test_no_body_or_framing_causes_a_500_or_a_hang() -> None:
    run("fuzz", "requests", "--count", "300", "--seed", "1", "--slack", "10")


@pytest.mark.timeout(400)
def test_hostile_grammars_end_neither_server_nor_engine() -> None:
    run("fuzz", "grammars", "--count", "60", "--seed", "1")


@pytest.mark.timeout(400)
def test_hostile_images_are_read_or_refused() -> None:
    run("fuzz", "images", "--count", "200", "--seed", "1", "--pulse", "30")


@pytest.mark.timeout(400)
def test_hostile_recordings_are_read_or_refused() -> None:
    run("fuzz", "recordings", "--count", "200", "--seed", "1")
