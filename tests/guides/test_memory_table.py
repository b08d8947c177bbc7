"""The table of docs/guides/first-model.md, computed from the shapes of its models.

An int4 file for CPUs has 4 bits for each weight and a scale of 32 bits for each block of 32, and embeddings of 32 bits.
"""

import re
from dataclasses import dataclass

import pytest

from genai_server.model_files.model_memory import LOADED, RUNTIME
from tests.guides.guide import Guide

_GB, _GIB = 10**9, 2**30
# What the page leaves to the system.
_SYSTEM = 2 * _GIB
# Limits that the memory sets are multiples of it, and keys and values have half of the memory that weights leave.
_ROUND = 1024


@dataclass(frozen=True)
class _Shape:
    """A model's published config.json."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int

    @property
    def matrices(self) -> int:
        """Weights of matrices of 4 bits, the head included."""
        size = self.hidden // self.heads
        attention = self.hidden * size * 2 * (self.heads + self.key_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.embeddings

    @property
    def embeddings(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def file(self) -> float:
        return self.matrices * 5 / 8 + self.embeddings * 4

    def length(self, memory: int) -> int:
        """The tokens that fit into a machine's memory with keys and values of 16 bits."""
        left = memory - _SYSTEM - LOADED * self.file - RUNTIME
        per_token = 2 * self.layers * self.key_heads * (self.hidden // self.heads) * 2
        return min(self.context, int(left / 2 / per_token) // _ROUND * _ROUND)


SHAPES = {
    "microsoft/Phi-3-mini-4k-instruct-onnx": _Shape(3072, 8192, 32, 32, 32, 32_064, 4096),
    "microsoft/Phi-4-mini-instruct-onnx": _Shape(3072, 8192, 32, 24, 8, 200_064, 131_072),
    "microsoft/mistral-7b-instruct-v0.2-ONNX": _Shape(4096, 14_336, 32, 32, 8, 32_000, 32_768),
    "microsoft/Phi-3-medium-4k-instruct-onnx-cpu": _Shape(5120, 17_920, 40, 40, 10, 32_064, 4096),
}
_ROW = re.compile(r"^\| (\d+) GB \| `(.*?)` \| .*? \| ([\d.]+) GB \| ([\d,]+) \|", re.MULTILINE)
ROWS = _ROW.findall(Guide("first-model").text)


@pytest.mark.parametrize(("memory", "repository", "download", "context"), ROWS)
def test_row_is_what_the_models_shape_gives(memory: str, repository: str, download: str, context: str) -> None:
    shape = SHAPES[repository]
    assert float(download) == pytest.approx(shape.file / _GB, abs=0.06)
    assert int(context.replace(",", "")) == shape.length(int(memory) * _GIB)


def test_each_memory_has_a_row() -> None:
    assert {memory for memory, *_ in ROWS} == {"8", "16", "32"}
