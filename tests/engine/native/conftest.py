"""The kernels that the tests of operators run with."""

from collections.abc import Iterator

import genai_server_native
import pytest


@pytest.fixture(params=genai_server_native.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Those of each instruction set that this processor has."""
    genai_server_native.use(request.param)
    yield request.param
    genai_server_native.use(genai_server_native.instruction_sets()[0])
