"""The free memory of a GPU, with libraries that answer as CUDA's runtime does."""

import ctypes
from typing import Any

import pytest

from genai_server.engine.host.resources import free_gpu_memory


class Runtime:
    """CUDA's runtime for one GPU; a driver may be too old for it."""

    def __init__(self, free: int) -> None:
        self._free = free

    def cudaSetDevice(self, number: int) -> int:
        return 0 if self._free and number == 0 else 35

    def cudaMemGetInfo(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = self._free, 2 * self._free
        return 0


def load(monkeypatch: pytest.MonkeyPatch, *found: Runtime | None) -> None:
    """Let these be the libraries of CUDA 13 and 12."""
    libraries = iter(found)

    def open_library(name: str) -> Runtime:
        if (runtime := next(libraries)) is None:
            raise OSError(name)
        return runtime

    monkeypatch.setattr(ctypes, "CDLL", open_library)


@pytest.mark.parametrize("runtimes", [(Runtime(9), None), (None, Runtime(9)), (Runtime(0), Runtime(9))])
def test_the_first_runtime_that_the_driver_supports_tells(
    runtimes: tuple[Runtime | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(monkeypatch, *runtimes)
    assert free_gpu_memory(0) == 9


@pytest.mark.parametrize("runtimes", [(None, None), (Runtime(0), None), (None, Runtime(0))])
def test_without_a_gpu_nothing_is_known(runtimes: tuple[Runtime | None, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, *runtimes)
    assert free_gpu_memory(0) is None


def test_nothing_is_known_of_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, Runtime(9), Runtime(9))
    assert free_gpu_memory(1) is None
