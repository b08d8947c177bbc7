"""Products by AMX, whose instructions are emulated: they are bitwise those of the AVX-512 kernels."""

import ctypes
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import genai_server_native
import numpy as np
import pytest

from genai_server.engine.graph_rewriting.packed_weights import PANEL
from genai_server.engine.model import native_trial
from tests.engine.native.native_builds import build
from tests.engine.native.packed_product import activations, matrix, product
from tests.engine.native.test_operators import Attention

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "avx512bf16" not in genai_server_native.instruction_sets(), reason="the emulation needs AVX-512 with BF16"
    ),
    pytest.mark.timeout(600),  # the first test compiles the library, which takes minutes on a busy machine
]
# Of the emulated library.
AMX, REFERENCE = "amx", "avx512vnni"
# The AVX-512 kernels compute up to so many rows, and larger blocks.
FEW_ROWS, MAX_BLOCK = 4, 256


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> Path:
    return build(pytestconfig, "emulated", ["-DEMULATED_AMX"])


@pytest.fixture(autouse=True)
def emulated(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    monkeypatch.setattr(genai_server_native, "library", lambda: library)
    loaded = ctypes.CDLL(str(library))
    loaded.emulated_multiplications.restype = ctypes.c_int64
    return loaded


def product_of(
    bits: int, num_outputs: int, block: int, *, more: bool = False, gated: bool = False, whole_blocks: int = 2
) -> tuple[Any, int]:
    """A session, with offsets and a bias if there are to be `more` inputs, and its number of inputs.

    The inputs end within the block after the whole ones.
    """
    num_inputs = whole_blocks * block + 7
    bias = np.random.default_rng(2).standard_normal(num_outputs, np.float32) if more and not gated else None
    return product(matrix(bits, num_outputs, num_inputs, block, offsets=more), bias=bias, gated=gated), num_inputs


def check(run: Any, num_inputs: int, rows: int, emulated: ctypes.CDLL, *, is_by_tiles: bool) -> None:
    x = activations(rows, num_inputs)
    genai_server_native.use(REFERENCE)
    (expected,) = run.run(None, {"x": x})
    before = emulated.emulated_multiplications()
    genai_server_native.use(AMX)
    (found,) = run.run(None, {"x": x})
    assert (emulated.emulated_multiplications() > before) == is_by_tiles, rows
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32)), rows


def test_amx_is_the_fastest_instruction_set() -> None:
    assert genai_server_native.instruction_sets()[:3] == [AMX, "avx512bf16", REFERENCE]


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("block", [16, 32, 48, 64, 80, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_by_tiles_are_those_of_avx512(bits: int, block: int, more: bool, emulated: ctypes.CDLL) -> None:
    for num_outputs in (15, 64, 161):
        run, num_inputs = product_of(bits, num_outputs, block, more=more)
        for rows in [*range(1, 41), 63, 64, 65, 100, 131]:
            check(run, num_inputs, rows, emulated, is_by_tiles=rows > FEW_ROWS and block <= MAX_BLOCK)


# So many rows that the first task has several strips, and the last one a single row: a task has at least 48.
ROWS_OF_TASK = 393216 // (3 * 128) // 12 * 12


@pytest.mark.parametrize(
    ("num_outputs", "block", "how", "rows"),
    [
        pytest.param(4 * PANEL, 32, {"gated": True}, [*range(5, 41), 64, 130], id="gated"),
        pytest.param(4 * PANEL, 32, {"gated": True, "more": True}, [*range(5, 41), 64, 130], id="gated, offsets"),
        # Rows that two groups of tiles have in common are added once.
        pytest.param(70, 128, {"more": True, "whole_blocks": 33}, [3, 5, 16, 17, 37, 64, 65, 100], id="parts"),
        pytest.param(70, 128, {}, [ROWS_OF_TASK - 1, ROWS_OF_TASK + 1, ROWS_OF_TASK + 70], id="tasks"),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_gated_and_divided_products_by_tiles_are_those_of_avx512(
    bits: int, num_outputs: int, block: int, how: dict[str, Any], rows: list[int], emulated: ctypes.CDLL
) -> None:
    run, num_inputs = product_of(bits, num_outputs, block, **how)
    for number in rows:
        check(run, num_inputs, number, emulated, is_by_tiles=number > FEW_ROWS)


@pytest.mark.parametrize("is_configured", [False, True])
def test_the_configuration_of_a_thread_is_restored(is_configured: bool, emulated: ctypes.CDLL) -> None:
    """ONNX Runtime's own kernels configure the tiles of a thread once."""
    config = np.zeros(64, np.uint8)
    if is_configured:
        config[[0, 16, 48, 18, 49]] = 1, 64, 16, 32, 7
    emulated.emulated_load_config(config.ctypes.data_as(ctypes.c_void_p))
    run = product(matrix(8, 64, 71, 32), threads=1)
    check(run, 71, 20, emulated, is_by_tiles=True)
    found = np.full(64, 255, np.uint8)
    emulated.emulated_store_config(found.ctypes.data_as(ctypes.c_void_p))
    assert np.array_equal(found, config)


def test_the_trial_of_a_processor_tries_tiles_of_all_sizes(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong kernels or instructions are found before a server uses them."""
    tried, compute = set(), native_trial._product

    def counted(bits: int, block: int, rows: int) -> Any:
        before = emulated.emulated_multiplications()
        found = compute(bits, block, rows)
        if emulated.emulated_multiplications() > before:
            tried.add((bits, block, rows < 16))
        return found

    monkeypatch.setattr(native_trial, "_product", counted)
    native_trial.main(AMX)
    assert tried == set(itertools.product((4, 8), (16, 32, 64, 128), (False, True)))


def test_attention_in_bfloat16_is_by_tiles_however_few_rows_there_are(emulated: ctypes.CDLL) -> None:
    given = Attention(bf16=True, length=160)
    text = given.tokens(150, 3)
    found = []
    for cut in ([150], [100, 1, 1, 48], [1] * 20 + [130]):
        run, caches, done = given.run(), given.caches(), 0
        before, parts = emulated.emulated_multiplications(), []
        for number in cut:
            parts.append(given.read(run, [(1, done, number)], text[done : done + number], caches))
            done += number
        assert emulated.emulated_multiplications() > before
        found.append(np.concatenate(parts))
    assert np.abs(found[0] - given.expected(text)).max() < 0.03
    assert (found[1] == found[0]).all()
    assert (found[2] == found[0]).all()
