"""The operators of genai-server-native against references in 64 bits, and bitwise against themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from genai_server.engine.graph_rewriting.packed_weights import PANEL, QuantizedMatrix
from tests.engine.native.operator_session import run_in_place, session, starts
from tests.engine.native.packed_product import activations, matrix, product

pytestmark = pytest.mark.usefixtures("instruction_set")


def dense(given: QuantizedMatrix) -> NDArray[np.float64]:
    """The weights [outputs, inputs]."""
    values = (given.weights.astype(np.float64) - (1 << (given.bits - 1))) * np.repeat(given.scales, given.block, 1)
    if given.offsets is not None:
        values += np.repeat(given.offsets, given.block, 1)
    found: NDArray[np.float64] = values[:, : given.num_inputs]
    return found


PRODUCTS = [
    (4, 192, 256, 128, False),
    (4, 100, 96, 32, True),
    (4, 1152, 896, 16, False),
    (4, 896, 1000, 64, True),
    (8, 128, 896, 32, False),
    (8, 70, 100, 128, True),
]


@pytest.mark.parametrize(("bits", "num_outputs", "num_inputs", "block", "offsets"), PRODUCTS)
def test_a_product_is_right_and_each_row_the_same_next_to_any_others(
    bits: int, num_outputs: int, num_inputs: int, block: int, offsets: bool
) -> None:
    given = matrix(bits, num_outputs, num_inputs, block, offsets=offsets)
    bias = np.arange(num_outputs, dtype=np.float32)
    run, x = product(given, bias=bias), activations(64, num_inputs)
    (found,) = run.run(None, {"x": x})
    expected = x.astype(np.float64) @ dense(given).T + bias
    # Activations are rounded to 127 steps of the largest in a block.
    assert np.abs(found - expected).max() < 0.06 * (expected - bias).std()
    for rows in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 25, 63):
        (part,) = run.run(None, {"x": x[64 - rows :]})
        assert np.array_equal(part, found[64 - rows :]), rows


def test_the_error_of_a_product_is_that_of_onnx_runtime() -> None:
    """MatMulNBits with accuracy level 4 rounds activations in the same way."""
    num_outputs, num_inputs, block = 512, 1024, 32
    given, x = matrix(4, num_outputs, num_inputs, block), activations(8, num_inputs)
    pairs = given.weights.reshape(num_outputs, -1, block)
    attributes: dict[str, Any] = {"N": num_outputs, "K": num_inputs, "block_size": block, "bits": 4}
    attributes["accuracy_level"] = 4
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    library = session(node, {"w": pairs[..., 0::2] | pairs[..., 1::2] << 4, "s": given.scales.reshape(-1)})
    expected = x.astype(np.float64) @ dense(given).T
    errors = [np.abs(run.run(None, {"x": x})[0] - expected).mean() for run in (product(given), library)]
    assert errors[0] < 1.05 * errors[1]


@pytest.mark.parametrize("offsets", [False, True])
def test_a_gated_product_is_silu_of_the_gate_times_the_values(offsets: bool) -> None:
    given = matrix(4, 4 * PANEL, 256, 32, offsets=offsets)
    x = activations(20, 256)
    run = product(given, gated=True)
    (found,) = run.run(None, {"x": x})
    parts = (x.astype(np.float64) @ dense(given).T).reshape(20, -1, 2, PANEL)
    expected = (parts[:, :, 0] / (1 + np.exp(-parts[:, :, 0])) * parts[:, :, 1]).reshape(20, -1)
    assert np.abs(found - expected).max() < 0.1 * expected.std()
    assert np.array_equal(run.run(None, {"x": x[3:4]})[0], found[3:4])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"bits": 3}, "bits must be 4, 8, 16 or 32"), ({"block": 24}, "block must be"), ({"N": 0}, "must be positive")],
)
def test_attributes_are_checked_when_a_session_is_made(wrong: Mapping[str, int], message: str) -> None:
    with pytest.raises(Exception, match=message):
        product(matrix(4, 64, 64, 32), wrong)


@pytest.mark.parametrize("wrong", [{"N": 200}, {"K": 128}, {"bits": 8}, {"block": 16}])
def test_sizes_are_checked_before_a_product(wrong: Mapping[str, int]) -> None:
    run = product(matrix(4, 64, 64, 32), wrong)
    with pytest.raises(Exception, match="PackedMatMul: "):
        run.run(None, {"x": activations(1, wrong.get("K", 64))})


@dataclass(frozen=True)
class Attention:
    """An attention with some sequences, of which a pass reads any tokens."""

    heads: int = 6
    cache_heads: int = 2
    size: int = 32
    cache_type: Any = np.float32
    # Values of a head that are rotated.
    rotary: int = 32
    interleaved: bool = False
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    norms: bool = False
    separate: bool = False
    bf16: bool = False
    threads: int = 2
    length: int = 1600
    scale: float = 0.0

    def run(self) -> Any:
        own = ["key", "value"] if self.separate else ["", ""]
        inputs = ["query", *own, "key_cache", "value_cache", "starts", "pasts", "slots", "cos", "sin", "places"]
        inputs += ["sinks" if self.sinks else "", *(["query_norm", "key_norm"] if self.norms else ["", ""])]
        attributes: dict[str, Any] = {"num_heads": self.heads, "kv_num_heads": self.cache_heads}
        attributes |= {"rotary_interleaved": int(self.interleaved), "bf16": int(self.bf16)}
        attributes |= {"local_window_size": self.window or -1, "scale": self.scale, "softcap": self.softcap}
        node = helper.make_node("RaggedAttention", inputs, ["y"], domain=DOMAIN, **attributes)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.cache_type))
        kinds = {"key_cache": kind, "value_cache": kind, "places": TensorProto.INT64}
        return session(node, kinds=kinds, threads=self.threads)

    def tokens(self, number: int, seed: int) -> NDArray[np.float32]:
        """The queries, keys and values of a sequence's tokens."""
        width = (self.heads + 2 * self.cache_heads) * self.size
        return np.random.default_rng(seed).standard_normal((number, width), np.float32)

    def constants(self) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(9)
        angles = np.arange(self.length)[:, None] / 10000 ** (np.arange(self.rotary // 2) / (self.rotary // 2))
        found = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        if self.sinks:
            found["sinks"] = rng.standard_normal(self.heads, np.float32)
        if self.norms:
            found |= {name: rng.random(self.size, np.float32) + 0.5 for name in ("query_norm", "key_norm")}
        return found

    def expected(self, tokens: NDArray[np.float32]) -> NDArray[np.float64]:
        """The attention of one sequence from its beginning, in 64 bits."""
        number, group, half = len(tokens), self.heads // self.cache_heads, self.rotary // 2
        x = tokens.astype(np.float64).reshape(number, -1, self.size)
        constants = {name: array.astype(np.float64) for name, array in self.constants().items()}
        q, k, v = x[:, : self.heads], x[:, self.heads : -self.cache_heads], x[:, -self.cache_heads :]
        if self.norms:
            q, k = (
                part / np.sqrt((part**2).mean(-1, keepdims=True) + 1e-6) * constants[f"{name}_norm"]
                for part, name in ((q, "query"), (k, "key"))
            )

        def rotated(part: NDArray[np.float64]) -> NDArray[np.float64]:
            cos, sin = constants["cos"][:number, None], constants["sin"][:number, None]
            first = slice(0, self.rotary, 2) if self.interleaved else slice(0, half)
            second = slice(1, self.rotary, 2) if self.interleaved else slice(half, self.rotary)
            found = part.copy()
            found[..., first] = part[..., first] * cos - part[..., second] * sin
            found[..., second] = part[..., second] * cos + part[..., first] * sin
            return found

        q, k = rotated(q), rotated(k)
        distance = np.arange(number)[:, None] - np.arange(number)
        hidden = (distance < 0) | (distance >= (self.window or number))
        out = np.empty((number, self.heads, self.size))
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T * (self.scale or self.size**-0.5)
            if self.softcap:
                scores = self.softcap * np.tanh(scores / self.softcap)
            scores[hidden] = -np.inf
            top = scores.max(1, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(1, keepdims=True)
            if self.sinks:
                total += np.exp(constants["sinks"][head] - top)
            out[:, head] = weights / total @ v[:, head // group]
        return out.reshape(number, -1)

    def caches(self, slots: int = 4) -> dict[str, NDArray[Any]]:
        scale = 4 if self.cache_type == np.int8 else 0
        shape = (slots, self.cache_heads, self.length, self.size + scale)
        return {name: np.full(shape, 7, self.cache_type) for name in ("key_cache", "value_cache")}

    def read(
        self, run: Any, rows: Sequence[tuple[int, int, int]], tokens: NDArray[np.float32], caches: dict[str, Any]
    ) -> NDArray[np.float32]:
        """Run a pass over rows of a slot, its length and the number of new tokens."""
        slots, pasts, numbers = zip(*rows, strict=True)
        widths = [self.heads * self.size, (self.heads + self.cache_heads) * self.size]
        parts = np.split(tokens, widths, axis=1) if self.separate else [tokens]
        names = ("query", "key", "value")
        given = {name: np.ascontiguousarray(part)[np.newaxis] for name, part in zip(names, parts, strict=False)}
        given["places"] = np.array([[past + n for _, past, number in rows for n in range(number)]], np.int64)
        places = {"starts": starts(numbers), "pasts": pasts, "slots": slots}
        return run_in_place(run, places, given | caches | self.constants())


@cache
def expected(given: Attention, number: int, seed: int) -> NDArray[np.float64]:
    """The attention of `number` tokens, which all instruction sets have in common."""
    return given.expected(given.tokens(number, seed))


ATTENTIONS = [
    Attention(),
    Attention(heads=3, cache_heads=3, size=128, rotary=128, separate=True),
    Attention(heads=4, cache_heads=1, size=96, rotary=48, interleaved=True),
    Attention(window=100, sinks=True),
    Attention(window=700, softcap=2.0, scale=0.3),
    Attention(size=16, rotary=16, norms=True, separate=True),
    Attention(cache_type=np.float16),
    Attention(bf16=True),
    Attention(bf16=True, window=70, cache_type=np.float16),
    Attention(cache_type=np.int8),
    Attention(heads=4, cache_heads=1, size=80, rotary=48, window=700, softcap=2.0, sinks=True, cache_type=np.int8),
    Attention(bf16=True, norms=True, cache_type=np.int8),
]
# How many tokens passes read of two sequences.
PASSES = [(600, 1), (1, 20), (640, 3), (3, 0), (0, 40), (1, 1), (55, 5)]


@pytest.mark.parametrize("given", ATTENTIONS, ids=str)
def test_attention_of_chunks_next_to_single_tokens_is_right(given: Attention) -> None:
    run, caches = given.run(), given.caches()
    texts = [given.tokens(1300, 3), given.tokens(70, 4)]
    found: list[list[NDArray[np.float32]]] = [[], []]
    done = [0, 0]
    for numbers in PASSES:
        rows = [(slot, done[text], numbers[text]) for text, slot in ((0, 2), (1, 1))]
        both = np.concatenate([texts[text][done[text] : done[text] + numbers[text]] for text in (0, 1)])
        out = given.read(run, rows, both, caches)
        found[0].append(out[: numbers[0]])
        found[1].append(out[numbers[0] :])
        done = [done[text] + numbers[text] for text in (0, 1)]
    assert done == [1300, 70]
    limit = 0.03 if given.bf16 or given.cache_type == np.int8 else 3e-6 if given.cache_type == np.float32 else 3e-3
    for parts, text, seed in zip(found, texts, (3, 4), strict=True):
        assert np.abs(np.concatenate(parts) - expected(given, len(text), seed)).max() < limit
    for written in caches.values():  # and nothing else
        assert (written[[0, 3]] == 7).all()
        assert (written[1, :, 70:] == 7).all()


@pytest.mark.parametrize("given", ATTENTIONS, ids=str)
def test_a_token_is_bitwise_the_same_in_any_pass(given: Attention) -> None:
    """However its text is cut, next to any other rows, and with any number of threads."""
    text, other = given.tokens(1300, 5), given.tokens(1300, 6)
    ways = [
        (1, [1300], 0),
        (2, [256] * 5 + [20], 3),
        (2, [700, 1, 1, 1, 597], 1),
        (4, [1299, 1], 0),
        (2, [1100] + [4] * 50, 9),
    ]
    results = []
    for threads, cuts, num_others in ways:
        run, caches, done, parts = Attention(**vars(given) | {"threads": threads}).run(), given.caches(), 0, []
        for number, cut in enumerate(cuts):
            rows = ([(0, number * num_others, num_others)] if num_others else []) + [(3, done, cut)]
            beside = other[number * num_others : (number + 1) * num_others]
            parts.append(given.read(run, rows, np.concatenate([beside, text[done : done + cut]]), caches)[num_others:])
            done += cut
        results.append([np.concatenate(parts), *(array[3].copy() for array in caches.values())])
    for found in results[1:]:
        assert all(map(np.array_equal, found, results[0]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 1599, 2)], "does not fit slot 0"),
        ([(4, 0, 2)], "does not fit slot 4"),
        ([(-1, 0, 2)], "does not fit slot -1"),
        ([(0, -1, 2)], "behind -1"),
    ],
)
def test_a_row_outside_of_the_slots_is_refused(rows: list[tuple[int, int, int]], message: str) -> None:
    given = Attention()
    caches = given.caches()
    with pytest.raises(Exception, match=message):
        given.read(given.run(), rows, given.tokens(2, 1), caches)
    assert (caches["key_cache"] == 7).all()


def test_tokens_behind_the_last_row_are_zero() -> None:
    given = Attention()
    arrays = given.caches() | given.constants() | {"query": given.tokens(3, 1)[np.newaxis]}
    rows = {"starts": [0, 1], "pasts": [0], "slots": [0]}
    out = run_in_place(given.run(), rows, arrays | {"places": np.zeros((1, 3), np.int64)})
    assert (out[1:] == 0).all()
    assert (out[0] != 0).any()


@pytest.mark.parametrize("length", [1, 60, 64, 1500])
def test_attention_that_is_not_causal_reads_all_keys_of_a_slot(length: int) -> None:
    """As decoders of speech read what an encoder made of a sound."""
    heads, size, slots = 6, 64, 3
    rng = np.random.default_rng(length)
    keys, values = (rng.standard_normal((slots, heads, length, size), np.float32) for _ in range(2))
    queries = rng.standard_normal((1, 140, heads * size), np.float32)
    names = ["query", "", "", "key_cache", "value_cache", "starts", "pasts", "slots"]
    node = helper.make_node(
        "RaggedAttention", names, ["y"], domain=DOMAIN, num_heads=heads, kv_num_heads=heads, causal=0
    )
    run = session(node)
    rows = [(2, 0, 1), (0, 1, 130), (1, 131, 9)]
    feed = {"query": queries, "key_cache": keys, "value_cache": values}
    given = {"starts": [0, 1, 131, 140], "pasts": [7, 0, 0], "slots": [2, 0, 1]}
    out = run_in_place(run, given, feed)
    for slot, start, number in rows:
        own = queries[0, start : start + number].reshape(number, heads, size).astype(np.float64)
        scores = np.einsum("thd,hsd->hts", own, keys[slot]) / np.sqrt(size)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.einsum("hts,hsd->thd", weights / weights.sum(-1, keepdims=True), values[slot])
        assert np.abs(out[start : start + number] - wanted.reshape(number, -1)).max() < 3e-6
    feed["query"] = np.ascontiguousarray(queries[:, 131:])
    alone = run_in_place(run, {"starts": [0, 9], "pasts": [0], "slots": [1]}, feed)
    assert np.array_equal(alone, out[131:])


def test_cached_heads_of_8_bits_have_scales_of_their_own() -> None:
    """A token's keys and values are rounded to 127 steps of the largest one of each head."""
    given = Attention(cache_type=np.int8)
    caches, tokens = given.caches(), given.tokens(3, 1)
    tokens[1] *= 1000
    tokens[2] = 0
    given.read(given.run(), [(2, 0, 3)], tokens, caches)
    written = caches["value_cache"][2, :, :3]
    scales = np.ascontiguousarray(written[..., given.size :]).view(np.float32)
    values = tokens[:, -given.cache_heads * given.size :].reshape(3, given.cache_heads, given.size).transpose(1, 0, 2)
    largest = np.abs(values).max(-1, keepdims=True)
    assert np.allclose(scales, largest / 127, rtol=1e-6)
    assert (np.abs(written[..., : given.size] * scales - values) <= 0.501 * scales).all()
    assert (np.abs(written[:, :2, : given.size]).max(-1) == 127).all()
    assert not written[:, 2].any()


@pytest.mark.parametrize("width", [0, 4, 16, 34, 32 + 16, 1024 + 16 + 4])
def test_cached_heads_of_8_bits_without_room_for_a_scale_are_refused(width: int) -> None:
    given = Attention(cache_type=np.int8)
    caches = {name: np.zeros((1, given.cache_heads, 64, width), np.int8) for name in given.caches()}
    with pytest.raises(Exception, match="RaggedAttention: head_size must be a multiple of 16"):
        given.read(given.run(), [(0, 0, 2)], given.tokens(2, 1), caches)
