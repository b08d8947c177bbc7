"""The adapters of an engine, with a runner that reads texts as adapters."""

from pathlib import Path

import pytest

from genai_server.engine.runners.adapters import Adapters
from genai_server.engine.runners.pooled import PooledRunner
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.errors import AdapterLoadFailed, ModelNotFound, Unavailable
from genai_server.messages.generation_request import Adapter


class Counting(ScriptedRunner):
    """Counts the adapters that it loads. Somebody may write into their files while they are loaded."""

    num_loaded, is_rewritten = 0, False

    def load_adapter(self, path: Path) -> bytes:
        self.num_loaded += 1
        loaded = super().load_adapter(path)
        if self.is_rewritten:
            path.write_text("You, ", encoding="utf-8")
        return loaded


@pytest.fixture
def runner() -> Counting:
    return Counting()


@pytest.fixture
def adapters(runner: Counting) -> Adapters:
    return Adapters(runner)


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    file = tmp_path / "polite.txt"
    file.write_text("Sir, ", encoding="utf-8")
    return Adapter("polite", str(file), "1")


def test_adapter_is_loaded_once_for_all_requests(adapters: Adapters, adapter: Adapter, runner: Counting) -> None:
    adapters.load(adapter)
    adapters.load(adapter)
    assert adapters.find(adapter) is adapters.find(adapter) is not None
    assert runner.num_loaded == 1


def test_runner_without_adapters_refuses_them(adapter: Adapter) -> None:
    with pytest.raises(AdapterLoadFailed, match="a model for embeddings or reranking takes no adapters"):
        Adapters(PooledRunner.__new__(PooledRunner)).load(adapter)


def test_digest_tells_contents_apart_and_not_names(adapters: Adapters, adapter: Adapter, tmp_path: Path) -> None:
    same = adapters.find(Adapter("other", adapter.path, "2"))
    file = tmp_path / "rude.txt"
    file.write_text("You, ", encoding="utf-8")
    other = adapters.find(Adapter("polite", str(file), "3"))
    assert adapters.find(adapter).digest == same.digest != other.digest


def test_file_that_changes_while_it_is_loaded_is_refused(
    adapters: Adapters, adapter: Adapter, runner: Counting
) -> None:
    """The prefix cache tells adapters apart by their files' contents."""
    runner.is_rewritten = True
    with pytest.raises(AdapterLoadFailed, match="was written into while it was loaded"):
        adapters.load(adapter)


def test_missing_adapter_file_is_the_servers_fault_in_a_request(
    adapters: Adapters, adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    Path(adapter.path).unlink()
    with pytest.raises(Unavailable, match='^adapter "polite" cannot be loaded; see the server log$'):
        adapters.find(adapter)
    assert f'adapter "polite": {adapter.path} does not exist' in caplog.text
    with pytest.raises(AdapterLoadFailed, match='^adapter "polite": ') as refused:
        adapters.load(adapter)
    assert refused.value.param == "path"
    Path(adapter.path).write_text("Madam, ", encoding="utf-8")
    assert adapters.find(adapter).loaded == b"Madam, "


def test_unloaded_adapter_is_not_reloaded_by_a_late_request(adapters: Adapters, adapter: Adapter) -> None:
    adapters.load(adapter)
    adapters.unload(adapter.id)
    with pytest.raises(ModelNotFound, match='adapter "polite" was unloaded'):
        adapters.find(adapter)
    # A new one may have its name.
    assert adapters.find(Adapter(adapter.name, adapter.path, "2")).loaded == b"Sir, "
