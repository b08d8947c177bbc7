"""What `genai-server tune` has measured: the best settings among what was tried, and the table of the rates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genai_server.plain_tables import Rows

# Prompt tokens and generated tokens per second.
Rates = tuple[float, float]

TITLES = ("", "prefill tokens/s", "decode tokens/s", "")
# An entry is used if the product of both rates grows to at least this share.
_MIN_GAIN = 1.1
# The smallest value whose rate reaches this share of the best is chosen. A smaller batch needs less memory and makes a
# stream faster; a smaller chunk delays other requests less.
_GOOD_ENOUGH = {"max_batch_size": 0.95, "prefill_chunk": 0.9}


@dataclass
class Measured:
    """Rates in tokens per second, by the value that was tried."""

    prefill_by_threads: dict[int, float] = field(default_factory=dict)
    decode_by_threads: dict[int, float] = field(default_factory=dict)
    # Measured with the best number of threads, keyed by a session entry.
    by_entry: dict[tuple[str, str], Rates] = field(default_factory=dict)
    decode_by_batch: dict[int, float] = field(default_factory=dict)
    prefill_by_chunk: dict[int, float] = field(default_factory=dict)

    def best(self) -> dict[str, int]:
        """The settings to choose."""
        found = {"threads": self.best_threads}
        if len(self.decode_by_batch) > 1:  # without a batch, requests run one after another in any case
            found["max_batch_size"] = smallest_good(self.decode_by_batch, _GOOD_ENOUGH["max_batch_size"])
        found["prefill_chunk"] = smallest_good(self.prefill_by_chunk, _GOOD_ENOUGH["prefill_chunk"])
        return found

    @property
    def best_threads(self) -> int:
        """The number of threads with the best product of prefill and decode rates."""
        return max(self.prefill_by_threads, key=self._of_both)

    @property
    def best_entry(self) -> dict[str, str]:
        """The entry with the best product of the rates; none if that is hardly better than without."""
        products = {entry: math.prod(rates) for entry, rates in self.by_entry.items()}
        best = max(products, key=lambda entry: products[entry], default=None)
        if best is None or products[best] < _MIN_GAIN * self._of_both(self.best_threads):
            return {}
        return dict([best])

    def _of_both(self, threads: int) -> float:
        return self.prefill_by_threads[threads] * self.decode_by_threads[threads]


def smallest_good(rates: Mapping[int, float], share: float) -> int:
    """The smallest value whose rate is at least this share of the best rate."""
    return min(tried for tried, rate in rates.items() if rate >= share * max(rates.values()))


def row(title: str, prefill: float | None, decode: float | None, *, chosen: bool) -> Sequence[str]:
    """The row of a value that was tried, with its rates in tokens per second; None for one that was not measured."""
    rates = ("" if rate is None else f"{rate:.0f}" for rate in (prefill, decode))
    return title, *rates, "← best" if chosen else ""


def table(measured: Measured, best: Mapping[str, int]) -> Rows:
    """A table of the rates, the best marked."""
    rows: list[Sequence[str]] = [TITLES]
    for threads, prefill in measured.prefill_by_threads.items():
        chosen = threads == best["threads"]
        rows.append(row(f"threads = {threads}", prefill, measured.decode_by_threads[threads], chosen=chosen))
    for (name, value), rates in measured.by_entry.items():
        title = f"{name.removeprefix('session.')} = {value}"
        rows.append(row(title, *rates, chosen=name in measured.best_entry))
    for size, decode in measured.decode_by_batch.items():
        rows.append(row(f"max_batch_size = {size}", None, decode, chosen=size == best.get("max_batch_size")))
    for chunk, prefill in measured.prefill_by_chunk.items():
        rows.append(row(f"prefill_chunk = {chunk}", prefill, None, chosen=chunk == best["prefill_chunk"]))
    return rows
