"""Fixtures: each model with states of fixed size, and its batch."""

import pytest

from scripts._models.driven import Driven
from tests.engine.runners.hybrids import Hybrid


@pytest.fixture(scope="module", params=["lfm2", "qwen-3.5"])
def hybrid(request: pytest.FixtureRequest) -> Hybrid:
    return Hybrid(request.param)


@pytest.fixture
def runner(hybrid: Hybrid) -> Driven:
    return hybrid.load()
