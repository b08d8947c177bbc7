"""The operators of layers with states against references in 64 bits, and bitwise against themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from genai_server.engine.graph_rewriting.packed_products import DOMAIN
from tests.engine.native.operator_session import run_in_place, session, starts

pytestmark = pytest.mark.usefixtures("instruction_set")
SLOTS = 4
# A row of a pass: its slot, the number of its tokens, and how many of them change its state.
Row = tuple[int, int, int]


def run(on: Any, rows: Sequence[Row], given: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Run a pass over rows, one behind another; returns the results [tokens, …]."""
    slots, lengths, committed = zip(*rows, strict=True)
    return run_in_place(on, {"starts": starts(lengths), "slots": slots, "committed": committed}, given)


@dataclass(frozen=True)
class Convolution:
    """A causal convolution of channels."""

    channels: int = 100
    width: int = 4
    silu: bool = True
    bias: bool = True

    def session(self, threads: int = 2) -> Any:
        inputs = ["x", "weights", "state", "starts", "slots", "committed", *(["bias"] if self.bias else [])]
        node = helper.make_node("RaggedConvolution", inputs, ["y"], domain=DOMAIN, silu=int(self.silu))
        return session(node, threads=threads)

    def state(self) -> NDArray[np.float32]:
        return np.random.default_rng(3).standard_normal((SLOTS, self.width - 1, self.channels), np.float32)

    def tokens(self, number: int, seed: int) -> dict[str, NDArray[np.float32]]:
        return {"x": np.random.default_rng(seed).standard_normal((1, number, self.channels), np.float32)}

    def constants(self) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(1)
        found = {"weights": rng.standard_normal((self.width, self.channels), np.float32)}
        return found | ({"bias": rng.standard_normal(self.channels, np.float32)} if self.bias else {})

    def expected(
        self, given: Mapping[str, NDArray[np.float32]], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The results of a row's tokens, and the state behind each number of them."""
        constants = self.constants()
        inputs = np.concatenate([state, given["x"][0]]).astype(np.float64)
        number = len(inputs) - len(state)
        sums = sum(inputs[k : k + number] * constants["weights"][k] for k in range(self.width))
        sums = sums + constants.get("bias", 0)
        states = np.stack([inputs[n : n + self.width - 1] for n in range(number + 1)])
        return sums / (1 + np.exp(-sums)) if self.silu else sums, states


@dataclass(frozen=True)
class LinearAttention:
    """Linear attention; `key_heads` is the number of heads of keys, where that is not the one of values."""

    query_heads: int = 2
    heads: int = 2
    key_heads: int = 2
    size: int = 32
    value_size: int = 72
    decay: str = "head"
    delta: bool = True
    shared_rate: bool = False
    scale: float = 0.0

    def session(self, threads: int = 2) -> Any:
        optional = ["decay" if self.decay else "", "rate" if self.delta else ""]
        inputs = ["query", "key", "value", "state", "starts", "slots", "committed", *optional]
        attributes: dict[str, Any] = {"q_num_heads": self.query_heads, "kv_num_heads": self.heads, "scale": self.scale}
        node = helper.make_node(
            "RaggedLinearAttention", inputs, ["y"], domain=DOMAIN, delta=int(self.delta), **attributes
        )
        return session(node, threads=threads)

    def state(self) -> NDArray[np.float32]:
        return np.random.default_rng(3).standard_normal((SLOTS, self.heads, self.size, self.value_size), np.float32)

    def constants(self) -> dict[str, NDArray[np.float32]]:
        return {}

    def tokens(self, number: int, seed: int) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(seed)

        def drawn(width: int) -> NDArray[np.float32]:
            return rng.standard_normal((1, number, width), np.float32)

        keys = drawn(self.key_heads * self.size).reshape(1, number, -1, self.size)
        keys /= np.sqrt((keys**2).sum(-1, keepdims=True))
        found = {"query": drawn(self.query_heads * self.size), "key": keys.reshape(1, number, -1)}
        found["value"] = drawn(self.heads * self.value_size)
        if self.decay:
            width = self.heads * (self.size if self.decay == "key" else 1)
            found["decay"] = -rng.random((1, number, width), np.float32)
        if self.delta:
            found["rate"] = rng.random((1, number, 1 if self.shared_rate else self.heads), np.float32)
        return found

    def expected(
        self, given: Mapping[str, NDArray[np.float32]], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The results of a row's tokens, and the state behind each number of them."""
        wide = {name: array[0].astype(np.float64) for name, array in given.items()}
        number, s = len(wide["query"]), state.astype(np.float64)
        queries = wide["query"].reshape(number, self.query_heads, self.size)
        keys = wide["key"].reshape(number, self.key_heads, self.size)
        values = wide["value"].reshape(number, self.heads, self.value_size)
        out, states = [], [s.copy()]
        for t in range(number):
            results = {}
            for head in range(self.heads):
                key = keys[t, head // (self.heads // self.key_heads)]
                if self.decay:
                    s[head] *= np.exp(wide["decay"][t].reshape(self.heads, -1)[head])[:, None]
                change = values[t, head]
                if self.delta:
                    change = wide["rate"][t, 0 if self.shared_rate else head] * (change - key @ s[head])
                s[head] += np.outer(key, change)
                if self.query_heads >= self.heads:
                    group = self.query_heads // self.heads
                    of_queries = {head * group + n: head * group + n for n in range(group)}
                else:
                    of_queries = {head: head // (self.heads // self.query_heads)}
                for place, query in of_queries.items():
                    results[place] = queries[t, query] @ s[head] * (self.scale or self.size**-0.5)
            out.append(np.concatenate([results[place] for place in sorted(results)]))
            states.append(s.copy())
        return np.array(out), np.array(states)


LAYERS: list[Convolution | LinearAttention] = [
    Convolution(),
    Convolution(channels=1030, width=3, silu=False, bias=False),
    LinearAttention(),
    LinearAttention(query_heads=4, heads=2, size=16, value_size=64, decay="key", scale=0.7),
    LinearAttention(query_heads=1, heads=4, key_heads=1, value_size=20, shared_rate=True),
    LinearAttention(heads=4, key_heads=2, delta=False, decay=""),
    LinearAttention(delta=False, size=128, value_size=128),
]
TOKENS = 60


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rows_of_any_lengths_are_right_and_leave_their_states_in_their_slots(
    layer: Convolution | LinearAttention,
) -> None:
    on, state, constants = layer.session(), layer.state(), layer.constants()
    before = state.copy()
    rows: list[Row] = [(2, 25, 25), (0, 1, 1), (3, TOKENS - 26, TOKENS - 30)]
    given = layer.tokens(TOKENS, 8)
    found = run(on, rows, given | constants | {"state": state})
    first = 0
    for slot, number, committed in rows:
        own = {name: array[:, first : first + number] for name, array in given.items()}
        expected, states = layer.expected(own, before[slot])
        assert np.abs(found[first : first + number] - expected).max() < 2e-5 * max(1, np.abs(expected).max())
        assert np.abs(state[slot] - states[committed]).max() < 2e-5 * max(1, np.abs(states).max())
        first += number
    assert np.array_equal(state[1], before[1])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_token_is_bitwise_the_same_in_any_pass(layer: Convolution | LinearAttention) -> None:
    """However its text is cut, next to any other rows, with any number of threads, and with drafts left out."""
    text, other, constants = layer.tokens(TOKENS, 5), layer.tokens(TOKENS, 6), layer.constants()
    results = []
    for threads, cuts, num_others in ((1, [TOKENS], 0), (2, [20, 20, 20], 7), (4, [1] * 5 + [50, 5], 3)):
        on, state, done, parts = layer.session(threads), layer.state(), 0, []
        for cut in cuts:
            drafted = min(3, TOKENS - done - cut)  # these tokens come again
            rows: list[Row] = [(3, cut + drafted, cut)]
            given = {name: array[:, done : done + cut + drafted] for name, array in text.items()}
            if num_others:
                rows.insert(0, (1, num_others, num_others))
                given = {name: np.concatenate([other[name][:, :num_others], given[name]], 1) for name in given}
            parts.append(run(on, rows, given | constants | {"state": state})[num_others : num_others + cut])
            done += cut
        results.append((np.concatenate(parts), state[3].copy()))
    for out, state in results[1:]:
        assert np.array_equal(out, results[0][0])
        assert np.array_equal(state, results[0][1])


@pytest.mark.parametrize("layer", [Convolution(), LinearAttention()], ids=str)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(4, 2, 2)], "row 0 has slot 4 of 4"),
        ([(-1, 2, 2)], "row 0 has slot -1 of 4"),
        ([(0, 3, 3)], "the tokens of row 0 are 0 to 3 of 2"),
        ([(0, 2, 3)], "3 of 2 tokens of row 0 would change its state"),
        ([(0, 2, -1)], "-1 of 2 tokens of row 0 would change its state"),
        ([(0, 2, 2), (1, -1, 0)], "the tokens of row 1 are 2 to 1 of 2"),
    ],
)
def test_rows_that_do_not_fit_are_refused(layer: Convolution | LinearAttention, rows: list[Row], message: str) -> None:
    state = layer.state()
    before = state.copy()
    with pytest.raises(Exception, match=message):
        run(layer.session(), rows, layer.tokens(2, 1) | layer.constants() | {"state": state})
    assert np.array_equal(state, before)


@pytest.mark.parametrize("name", ["query", "key", "value", "decay", "rate"])
def test_tokens_of_a_wrong_size_are_refused(name: str) -> None:
    layer = LinearAttention()
    given = layer.tokens(2, 1) | {"state": layer.state()}
    given[name] = given[name][:, :, :-1].copy() if given[name].shape[2] > 2 else np.zeros((1, 2, 3), np.float32)
    with pytest.raises(Exception, match="RaggedLinearAttention: "):
        run(layer.session(), [(0, 2, 2)], given)


def test_tokens_of_no_row_are_zero() -> None:
    layer = LinearAttention()
    out = run(layer.session(), [(0, 2, 2)], layer.tokens(5, 1) | {"state": layer.state()})
    assert (out[2:] == 0).all()
    assert (out[:2] != 0).any()
