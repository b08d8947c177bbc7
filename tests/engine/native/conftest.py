"""The kernels that the tests of operators run with."""

from collections.abc import Iterator

import genai_server_native
import pytest

_FASTEST, *_OTHERS = genai_server_native.instruction_sets()


@pytest.fixture(params=[_FASTEST, *(pytest.param(name, marks=pytest.mark.slow) for name in _OTHERS)])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Those of each instruction set that this processor has."""
    genai_server_native.use(request.param)
    yield request.param
    genai_server_native.use(genai_server_native.instruction_sets()[0])
