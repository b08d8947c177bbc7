"""Which models are loaded and unloaded, with the test's clock and fake engines."""

import math
from collections.abc import Collection, Sequence
from typing import cast

import pytest

from genai_server.errors import InvalidField, ModelNotFound
from genai_server.messages.generation_request import Adapter
from genai_server.messages.launch import Beat
from genai_server.messages.server_status import EngineState, EngineStatus, ModelStatus
from genai_server.supervisor.engine_process import EngineWatch
from genai_server.supervisor.kv_cache_size import Decision, MemoryBudget, MemoryModel, Shortage
from genai_server.supervisor.model_pool import SETTLED, TURN_SECONDS, WANT_SECONDS, ManagedModel, ModelPool, new_status
from tests.given_settings import given


class FakeEngine:
    """Ready at once, with as many requests as the test sets."""

    kv_range = (0, 0)
    kv_bytes = 0

    def __init__(self) -> None:
        self.status = EngineStatus("cpu", EngineState.READY)
        self.requests = 0
        self.is_gone = False

    def start(self) -> None:
        pass

    def resize(self, num_bytes: int) -> None:
        pass

    def unload(self) -> None:
        self.is_gone = True

    def beat(self) -> Beat:
        return Beat(1, 0, self.requests, self.requests)


class Server:
    """Models by name, updated step by step."""

    def __init__(
        self,
        *names: str,
        most: int | str = 0,
        idle_unload: float = 0,
        drain: float = math.inf,
        budget: MemoryBudget | None = None,
    ) -> None:
        budget = budget or MemoryBudget(given(), free=lambda: 2**40)
        self.models = ModelPool(most, idle_unload, budget, drain=drain)
        self.engines: dict[str, FakeEngine] = {}
        # Models whose engines cannot be made.
        self.errors: dict[str, Exception] = {}
        for serial, name in enumerate(names):
            self.models.add(self.new(name, "/", serial))

    def _engines(self, about: ModelStatus) -> Sequence[EngineWatch]:
        if about.name in self.errors:
            raise self.errors[about.name]
        self.engines[about.name] = FakeEngine()
        return [cast(EngineWatch, self.engines[about.name])]

    def load(self, name: str, now: float) -> None:
        self.models.request_load(name, now)
        self.update(now)
        self.update(now)  # the first update
        assert self.states()[name] == "ready"

    def new(self, name: str, path: str = "/other", serial: int = 9) -> ManagedModel:
        return ManagedModel(new_status(name, path, ["cpu"], serial), self._engines, 0)

    def refuses(self, name: str, reason: str) -> None:
        """Check that a name is taken."""
        with pytest.raises(InvalidField, match=f'^name "{name}" is {reason}$'):
            self.models.add(self.new(name, "/"))

    def update(self, now: float) -> None:
        for model in self.models.update(now):
            model.end()
            self.models.ended(model)

    def states(self) -> dict[str, str]:
        return {about.name: about.state for about in self.models.statuses()}


def test_least_recently_used_model_is_evicted() -> None:
    server = Server("a", "b", "c", most=2)
    server.load("a", 0)
    server.load("b", 0)
    server.engines["a"].requests = 1
    server.update(10)
    server.engines["a"].requests = 0
    server.update(11)
    server.models.request_load("c", 20)
    server.update(20)
    assert server.states() == {"a": "ready", "b": "unloading", "c": "unloaded"}
    server.update(20 + SETTLED)
    assert server.engines["b"].is_gone
    server.update(20 + SETTLED)
    assert server.states() == {"a": "ready", "b": "unloaded", "c": "ready"}


def test_requests_that_no_longer_wait_evict_no_model() -> None:
    server = Server("a", "b", most=1)
    server.load("a", 0)
    server.engines["a"].requests = 1
    server.models.request_load("b", 100)
    server.update(100)
    server.update(100 + WANT_SECONDS)
    server.engines["a"].requests = 0
    server.update(110)
    server.update(120)
    assert server.states() == {"a": "ready", "b": "unloaded"}


def wait_for(server: Server, names: str, began: int, ended: int) -> dict[str, str]:
    """Update each second while requests wait for models; returns the states before each change, and the last ones."""
    for now in range(began, ended):
        for name in names:
            if server.states()[name] in ("unloaded", "unloading"):
                server.models.request_load(name, now)
        server.update(now)
    return server.states()


def in_use(server: Server, *names: str) -> None:
    for name in names:
        server.engines[name].requests = 1


def test_models_in_constant_use_take_turns() -> None:
    server = Server("a", "b", most=1)
    server.load("a", 0)
    turn = int(TURN_SECONDS)
    in_use(server, "a")
    assert wait_for(server, "b", 100, 100 + turn) == {"a": "ready", "b": "unloaded"}
    assert wait_for(server, "b", 100 + turn, 103 + turn) == {"a": "unloading", "b": "unloaded"}
    server.engines["a"].requests = 0
    wait_for(server, "ab", 103 + turn, 106 + turn)
    assert server.states() == {"a": "unloaded", "b": "ready"}
    in_use(server, "b")
    assert wait_for(server, "a", 106 + turn, 104 + 2 * turn) == {"a": "unloaded", "b": "ready"}
    assert wait_for(server, "a", 104 + 2 * turn, 108 + 2 * turn) == {"a": "unloaded", "b": "unloading"}


def test_the_model_that_was_loaded_first_gives_way_unless_another_is_idle() -> None:
    server = Server("a", "b", "c", most=2)
    server.load("b", 0)
    server.load("a", 5)
    in_use(server, "a", "b")
    wait_for(server, "c", 100, 100 + int(TURN_SECONDS) + 1)
    assert server.states() == {"a": "ready", "b": "unloading", "c": "unloaded"}
    server = Server("a", "b", "c", most=2)
    server.load("a", 0)
    server.load("b", 5)
    in_use(server, "a")
    server.update(100)
    server.models.request_load("c", 100)
    server.update(100)
    assert server.states() == {"a": "ready", "b": "unloading", "c": "unloaded"}


def test_answers_of_a_model_whose_turn_is_over_have_the_time_to_drain() -> None:
    server = Server("a", "b", most=1, drain=20)
    server.load("a", 0)
    in_use(server, "a")
    over = 100 + int(TURN_SECONDS)
    assert wait_for(server, "b", 100, over + 20) == {"a": "unloading", "b": "unloaded"}
    assert not server.engines["a"].is_gone
    assert wait_for(server, "b", over + 20, over + 23) == {"a": "unloaded", "b": "ready"}


class HoldsOne(MemoryBudget):
    """Memory that holds one model."""

    def __init__(self) -> None:
        super().__init__(given(), free=lambda: 2**40)

    def decide(
        self, model: MemoryModel, loaded: Collection[MemoryModel], idle: Collection[MemoryModel] = ()
    ) -> Decision | Shortage:
        if not loaded:
            return Decision.LOAD
        return Decision.EVICT if set(loaded) <= set(idle) else Shortage("too little", is_too_large=False)


def test_models_by_memory_take_turns_too() -> None:
    server = Server("a", "b", most="auto", budget=HoldsOne())
    server.load("a", 0)
    in_use(server, "a")
    over = 100 + int(TURN_SECONDS)
    assert wait_for(server, "b", 100, over) == {"a": "ready", "b": "unloaded"}
    assert server.models.find("b").about.shortage == "too little"
    assert wait_for(server, "b", over, over + 1) == {"a": "unloading", "b": "unloaded"}
    assert server.models.find("b").about.shortage == ""
    server.engines["a"].requests = 0
    assert wait_for(server, "b", over + 1, over + 4) == {"a": "unloaded", "b": "ready"}


def test_models_that_wait_are_loaded_in_order() -> None:
    server = Server("a", "b", "c", most=1)
    server.load("a", 0)
    in_use(server, "a")
    wait_for(server, "b", 100, 105)
    wait_for(server, "bc", 105, 116)
    server.engines["a"].requests = 0
    assert wait_for(server, "abc", 116, 120) == {"a": "unloaded", "b": "ready", "c": "unloaded"}
    in_use(server, "b")
    wait_for(server, "ac", 120, 134)
    server.engines["b"].requests = 0
    assert wait_for(server, "abc", 134, 138) == {"a": "unloaded", "b": "unloaded", "c": "ready"}


def test_model_just_loaded_is_not_evicted() -> None:
    server = Server("a", "b", most=1)
    server.load("a", 0)
    server.models.request_load("b", SETTLED / 2)
    server.update(SETTLED / 2)
    assert server.states()["a"] == "ready"


def test_idle_model_is_unloaded_after_its_time() -> None:
    server = Server("a", idle_unload=60)
    server.load("a", 0)
    server.update(59)
    assert server.states() == {"a": "ready"}
    server.update(60)
    assert server.states() == {"a": "unloading"}
    server.update(60 + SETTLED)
    assert server.states() == {"a": "unloaded"}
    assert server.models.find("a").about.on_demand


def test_unloading_waits_for_requests_until_its_deadline() -> None:
    server = Server("a", "b")
    for name in ("a", "b"):
        server.load(name, 0)
        server.engines[name].requests = 1
        server.models.unload(name, 30, 10)
    server.update(20)
    server.engines["a"].requests = 0
    server.update(21)
    assert server.states() == {"a": "unloading", "b": "unloading"}
    server.update(21 + SETTLED)
    assert server.states() == {"b": "unloading"}
    server.update(30)
    assert server.states() == {}


def test_unloading_model_is_not_found() -> None:
    server = Server("a")
    server.load("a", 0)
    server.models.set_alias("x", "a")
    assert server.models.find("x").about.name == "a"
    server.models.unload("x", 30, 10)
    for name in ("a", "x"):
        with pytest.raises(ModelNotFound):
            server.models.find(name)


def test_a_name_is_taken_by_what_is_loaded_or_to_be_loaded_and_by_aliases() -> None:
    server = Server("a", "b")
    server.models.request_load("a", 0)
    server.refuses("a", "to be loaded; unload it first")
    server.load("a", 0)
    server.models.set_alias("x", "a")
    server.refuses("a", "ready; unload it first")
    server.refuses("x", "an alias")
    server.models.unload("a", 30, 0)
    server.refuses("a", "unloading; try again once it is unloaded")
    server.models.add(server.new("b"))
    assert server.models.find("b").about.path == "/other"


def test_a_model_that_failed_or_that_nobody_waits_for_is_replaced() -> None:
    server = Server("a")
    server.models.request_load("a", 0)
    server.errors["a"] = ValueError("x")
    server.update(WANT_SECONDS)
    assert server.states() == {"a": "unloaded"}
    server.models.add(server.new("a"))
    assert server.models.find("a").about.path == "/other"


def test_an_adapter_is_there_once_for_one_model_until_it_is_removed() -> None:
    server = Server("a", "b")
    law = Adapter("law", "/law", "1")
    server.models.add_adapter("a", law)
    assert [about.adapters for about in server.models.statuses()] == [[law], []]
    with pytest.raises(InvalidField, match='^name "law" has already been loaded for model "a"; unload it first$'):
        server.models.add_adapter("a", Adapter("law", "/other", "2"))
    with pytest.raises(ModelNotFound) as missing:
        server.models.add_adapter("c", Adapter("law", "/law", "3"))
    assert missing.value.param == "model"
    server.models.add_adapter("b", Adapter("law", "/law", "2"))
    server.models.remove_adapter("a", "2")
    assert [len(about.adapters) for about in server.models.statuses()] == [1, 1]
    server.models.remove_adapter("a", "1")
    assert [len(about.adapters) for about in server.models.statuses()] == [0, 1]


def test_reloaded_model_keeps_its_adapters_if_it_is_the_same() -> None:
    server = Server("a")
    server.models.add_adapter("a", Adapter("law", "/law", "1"))
    again, other = server.new("a", "/", 7), server.new("a", "/other", 8)
    server.models.add(again)
    assert [adapter.name for adapter in again.about.adapters] == ["law"]
    server.models.add(other)
    assert other.about.adapters == []


def test_keep_alive_of_a_model_lasts_until_it_is_unloaded() -> None:
    server = Server("a", idle_unload=60)
    server.load("a", 0)
    server.models.keep("a", None)
    server.update(1000)
    assert server.states() == {"a": "ready"}
    server.models.keep("a", 0)
    server.update(1000 + SETTLED)
    server.update(1000 + 2 * SETTLED)
    assert server.states() == {"a": "unloaded"}
    (about,) = server.models.statuses()
    assert (about.on_demand, about.idle_unload) == (True, 60)
    server.models.keep("a", 0)  # no loaded model to apply this to
    server.load("a", 2000)
    server.update(2059)
    assert server.states() == {"a": "ready"}


def test_a_model_that_has_a_request_is_unloaded_after_it() -> None:
    server = Server("a")
    server.load("a", 0)
    server.engines["a"].requests = 1
    server.models.keep("a", 0)
    server.update(100)
    assert server.states() == {"a": "ready"}
    server.engines["a"].requests = 0
    server.update(101)
    server.update(101 + SETTLED)
    assert server.states() == {"a": "unloading"}


def test_exception_while_making_engines_fails_only_the_model() -> None:
    server = Server("a", "b")
    server.errors["a"] = StopIteration()
    server.models.request_load("a", 0)
    server.load("b", 0)
    assert server.states() == {"a": "failed", "b": "ready"}
    (failed,) = server.models.find("a").engine_statuses()
    assert (failed.state, failed.error) == ("failed", "StopIteration")
    server.errors.clear()
    server.models.add(server.new("a", "/", 2))
    server.load("a", 1)
    assert server.models.find("a").engine_statuses()[0].state == "ready"
