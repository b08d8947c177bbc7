"""Which models fit the memory, and how it is divided, with figures that the tests set."""

from pathlib import Path

import msgspec
import pytest

from genai_server.messages.server_status import EngineState, EngineStatus, ModelState, ModelStatus
from genai_server.model_files.model_memory import RUNTIME, ModelMemory
from genai_server.supervisor.kv_cache_size import Decision, MemoryBudget, Shortage, divided
from tests.given_settings import given

MIB = 2**20
# A token of each model has keys and values of 0.1 MiB: 2,048 tokens have 205 MiB, 8,192 have 819.
PER_TOKEN = MIB // 10
SMALL, LARGE = 300, 2300


class Engine:
    """An engine on a CPU with the memory that the test sets, in MiB."""

    def __init__(self, device: str = "cpu", kv_range: tuple[int, int] | None = None, held: int = 0) -> None:
        self.status = EngineStatus(device, EngineState.READY)
        self.kv_range = None if kv_range is None else (kv_range[0] * MIB, kv_range[1] * MIB)
        self.kv_bytes = held * MIB
        self.given: list[int] = []

    def resize(self, num_bytes: int) -> None:
        self.given.append(round(num_bytes / MIB))


class Model:
    """A model whose name is its size in MiB, behind a letter."""

    def __init__(self, name: str, *engines: Engine, state: ModelState = ModelState.READY, device: str = "cpu") -> None:
        self.about = ModelStatus(name, name, [device], id(self), state, 0)
        self.engines = engines
        self.state = state


def wanted(name: str, device: str = "cpu") -> Model:
    return Model(name, state=ModelState.UNLOADED, device=device)


def read(directory: Path) -> ModelMemory:
    return ModelMemory(int(directory.name[1:]) * MIB, PER_TOKEN, 100_000, PER_TOKEN * 17 // 64)


def budget(free: int, **settings: str) -> MemoryBudget:
    """With this number of free MiB."""
    return MemoryBudget(given(**settings), free=lambda: free * MIB, read=read)


def shortage(found: Decision | Shortage) -> Shortage:
    assert isinstance(found, Shortage)
    return found


def needed(weights: int, kv: int) -> int:
    """The MiB that must be free for these."""
    return weights + RUNTIME // MIB + 2 * kv


@pytest.mark.parametrize(
    ("free", "decision"), [(needed(SMALL, 820), "load"), (700 + 5, "load"), (700 + 3, "too large"), (10, "too large")]
)
def test_a_first_model_is_loaded_if_it_can_run_at_all(free: int, decision: str) -> None:
    found = budget(free).decide(wanted(f"a{SMALL}"), [])
    assert decision == ("too large" if isinstance(found, Shortage) else found.value)
    assert not isinstance(found, Shortage) or found.is_too_large


def test_a_refusal_has_the_figures() -> None:
    assert shortage(budget(2000).decide(wanted("a5000"), [])).reason == (
        "model a5000 needs about 5200 MiB for its weights, and 205 MiB for keys and values of a short sequence; "
        "2000 MiB are free (GENAI_MAX_MODELS=0 loads it in any case)"
    )


def test_idle_models_are_unloaded_and_used_ones_are_waited_for() -> None:
    loaded = Model(f"b{LARGE}", Engine(kv_range=(500, 900), held=600))
    scarce = budget(needed(SMALL, 400) - 600)
    model = wanted(f"a{SMALL}")
    assert scarce.decide(model, [loaded], [loaded]) is Decision.EVICT
    busy = shortage(scarce.decide(model, [loaded]))
    assert not busy.is_too_large
    assert "are free next to b2300, which keep 500 MiB of it" in busy.reason


def test_idle_models_stay_where_both_have_memory_or_unloading_them_would_not_help() -> None:
    loaded, tiny = Model(f"b{LARGE}", Engine(kv_range=(500, 5000), held=100)), Model("b1", Engine(kv_range=(1, 1)))
    assert budget(needed(SMALL, 500 + 820) - 100).decide(wanted(f"a{SMALL}"), [loaded], [loaded]) is Decision.LOAD
    assert shortage(budget(100).decide(wanted("a9000"), [tiny], [tiny])).is_too_large


def test_idle_models_are_unloaded_for_a_context_that_is_worth_it() -> None:
    loaded = Model(f"b{LARGE}", Engine(kv_range=(500, 5000)))
    free = needed(SMALL, 500 + 300)  # enough for 3,000 tokens next to the other
    assert budget(free).decide(wanted(f"a{SMALL}"), [loaded], [loaded]) is Decision.EVICT
    assert budget(free).decide(wanted(f"a{SMALL}"), [loaded]) is Decision.LOAD


def test_loading_models_count_with_all_they_need_and_make_no_other_too_large() -> None:
    loading = Model(f"b{LARGE}", Engine(), state=ModelState.LOADING)
    free = needed(SMALL, 205) + needed(LARGE, 820)
    assert budget(free).decide(wanted(f"a{SMALL}"), [loading]) is Decision.LOAD
    shortage(budget(free - 10).decide(wanted(f"a{SMALL}"), [loading]))
    free = LARGE - 1000  # of LARGE, of which the other one takes 1,000 MiB by now
    assert not shortage(budget(free).decide(wanted("a2000"), [loading])).is_too_large


def test_a_set_length_or_size_is_needed_in_full() -> None:
    for free, settings in (
        (500 + 3200, {"max_length": "32000"}),
        (500 + 1600, {"max_length": "32000", "kv_cache_type": "fp16"}),
        (500 + 850, {"max_length": "32000", "kv_cache_type": "int8"}),
        (500 + 700, {"kv_cache_bytes": str(700 * MIB)}),
    ):
        assert budget(free + 1, **settings).decide(wanted(f"a{SMALL}"), []) is Decision.LOAD
        shortage(budget(free - 1, **settings).decide(wanted(f"a{SMALL}"), []))


def test_a_draft_model_counts_with_its_model() -> None:
    def read(directory: Path) -> ModelMemory:
        return ModelMemory(100 * MIB if directory.name == "draft" else 300 * MIB, PER_TOKEN, 2048)

    def fits(free: int, draft_model: str) -> bool:
        model = wanted("a")
        model.about = msgspec.structs.replace(model.about, draft_model=draft_model)
        return MemoryBudget(given(), free=lambda: free * MIB, read=read).fits_well(model, [])

    alone, both = needed(300, 205), needed(400, 410)
    assert fits(alone + 1, "")
    assert not fits(both - 1, "draft")
    assert fits(both + 1, "draft")


def test_a_model_on_another_device_needs_its_process_only() -> None:
    assert budget(RUNTIME // MIB + 1).decide(wanted("a9000", "cuda"), []) is Decision.LOAD


@pytest.mark.parametrize(
    ("total", "ranges", "shares"),
    [
        (100, [(0, 1000)], [100]),
        (100, [(0, 1000), (0, 1000)], [50, 50]),
        (100, [(0, 10), (0, 1000)], [10, 90]),
        (100, [(80, 1000), (0, 1000)], [80, 20]),
        (100, [(80, 90), (70, 90)], [80, 70]),
        (100, [(0, 0), (30, 30), (0, 20)], [0, 30, 20]),
        (0, [(5, 9)], [5]),
        (7, [], []),
    ],
)
def test_shares_are_equal_within_their_limits(total: int, ranges: list[tuple[int, int]], shares: list[int]) -> None:
    assert divided(total, ranges) == shares


def test_memory_is_divided_when_models_come_load_and_go() -> None:
    first, second = Engine(), Engine()
    one, other = Model("a0", first, state=ModelState.LOADING), Model("b0", second, state=ModelState.LOADING)
    free = {"free": 4000 + RUNTIME // MIB}
    shared = MemoryBudget(given(), free=lambda: free["free"] * MIB, read=read)
    shared.divide([one])
    assert first.given == [2000]
    one.state, first.kv_range, first.kv_bytes = ModelState.READY, (1500 * MIB, 9000 * MIB), 100 * MIB
    free["free"] = 4000 - 100
    shared.divide([one])
    shared.divide([one])
    assert first.given == [2000, 2000]
    free["free"] += RUNTIME // MIB
    shared.divide([one, other])
    assert (first.given, second.given) == ([2000, 2000, 1500], [500])
    second.kv_range = (100 * MIB, 200 * MIB)
    other.state = ModelState.READY
    free["free"] = 3900
    shared.divide([one, other])
    assert (first.given[3:], second.given[1:]) == ([1800], [200])
    shared.divide([one])
    assert first.given[4:] == [2000]


def test_engines_elsewhere_get_no_share_and_hold_none_of_the_hosts_memory() -> None:
    gpu, holding, cpu = Engine("cuda"), Engine("cuda", (0, 0), held=9000), Engine()
    budget(4000).divide([Model("a0", gpu, holding, cpu)])
    assert (gpu.given, cpu.given) == ([0], [2000])


def test_a_set_size_is_not_divided() -> None:
    engine = Engine()
    budget(4000, kv_cache_bytes="1000").divide([Model("a0", engine)])
    assert engine.given == []
