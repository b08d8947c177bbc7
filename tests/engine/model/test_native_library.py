"""Which kernels of genai-server-native are used, and when none are."""

import json
import logging
from pathlib import Path

import genai_server_native
import pytest

from genai_server.engine.model import native_library, native_trial
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions, ProviderOptions

FASTEST = genai_server_native.instruction_sets()[0]


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    native_library._works.cache_clear()


def test_the_fastest_kernels_that_work_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_library, "_works", lambda name: name == "base")
    assert native_library.choose_instruction_set(tmp_path) == "base"


def test_what_the_trial_found_is_kept_for_the_next_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert native_library.choose_instruction_set(tmp_path) == FASTEST
    (kept,) = tmp_path.iterdir()
    assert json.loads(kept.read_text(encoding="utf-8")) == {"instruction_set": FASTEST}
    monkeypatch.setattr(native_library, "_works", lambda name: pytest.fail("it was tried again"))
    assert native_library.choose_instruction_set(tmp_path) == FASTEST


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["", "{", "[]", "{}"])
def test_a_damaged_file_is_found_out_again(damaged: str, tmp_path: Path) -> None:
    native_library.choose_instruction_set(tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text(damaged, encoding="utf-8")
    assert native_library.choose_instruction_set(tmp_path) == FASTEST


def test_kernels_that_end_their_process_are_named_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native_library, "_TRIAL", "tests.engine.model.ends_by_a_signal")
    with caplog.at_level(logging.WARNING):
        assert native_library.choose_instruction_set(None) is None
    assert f"for {FASTEST} are not used: status -" in caplog.text


def test_a_trial_that_could_not_run_is_repeated_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native_library, "_TRIAL_SECONDS", 1e-6)
    assert native_library.choose_instruction_set(tmp_path) is None
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    native_library._works.cache_clear()
    assert native_library.choose_instruction_set(tmp_path) == FASTEST


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = native_trial._run
    monkeypatch.setattr(native_trial, "_run", lambda *given: 1.2 * run(*given))
    with pytest.raises(ValueError, match="a product of 4 bits in blocks of 16 with 3 rows is wrong by"):
        native_trial.main(FASTEST)


def test_without_the_package_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "_PACKAGE", "genai_server_natively")
    reason = native_library.why_not_native(DEFAULT_OPTIONS, None)
    assert reason == "genai-server-native, which has the operators of a batch on CPUs, is not installed"


def test_without_kernels_that_work_the_reason_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_library, "_works", lambda name: False)
    reason = native_library.why_not_native(DEFAULT_OPTIONS, tmp_path)
    assert reason == "none of the kernels of genai-server-native computes rightly on this processor"


def test_a_provider_that_runs_the_graph_excludes_them() -> None:
    options = DeviceOptions(providers=[ProviderOptions("openvino")])
    assert "the provider openvino runs the graph" in (native_library.why_not_native(options, None) or "")
    assert native_library.why_not_native(DEFAULT_OPTIONS, None) is None


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match=f"runs {FASTEST}.*, not mmx"):
        genai_server_native.use("mmx")
