"""Each family of attacks of one API key on another one, with few requests, whose times are not judged."""

import sys

import pytest

from tests.running_server import run_python

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("family", ["scheduling", "cache", "models", "preparation", "bodies"])
def test_no_request_is_refused_because_of_another_key(family: str) -> None:
    assert "broken promises: none" in run_python("scripts/fairness.py", family, "--short")
