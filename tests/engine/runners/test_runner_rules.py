"""What the settings of a device determine about its runner before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from genai_server.engine.runners.runner_rules import check_reach, check_runner, never_batched
from genai_server.errors import ConfigurationError
from genai_server.options.device import check_device
from genai_server.options.table import Reach


@dataclass(frozen=True)
class Chosen:
    """The settings that choose a runner."""

    scheduler: str = "auto"
    exact: bool = False


PARALLEL = {"session": {"execution_mode": "parallel"}}


def test_missing_provider_package_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"providers": ["openvino", "cpu"], "provider": {"openvino": {"package": "missing_provider"}}}
    options = check_device(sections, "cpu")
    words = 'package="missing_provider": it is not installed; pip install missing-provider'
    with pytest.raises(ConfigurationError, match=words):
        check_runner("cpu", tmp_path, Chosen(), options)
    (tmp_path / "missing_provider.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    check_runner("cpu", tmp_path, Chosen(), options)


@pytest.mark.parametrize(
    ("device", "scheduler", "message"),
    [
        ("cuda", "generator", "execution_mode reaches only .*GENAI_SCHEDULER is generator"),
        ("webgpu", "batched", "GENAI_SCHEDULER=batched: a batch runs on cpu, cuda, tensorrt, not on webgpu"),
    ],
)
def test_unavailable_runner_or_option_is_refused(tmp_path: Path, device: str, scheduler: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_runner(device, tmp_path, Chosen(scheduler), check_device(PARALLEL, device))


def test_a_device_whose_requests_are_exact_has_no_batch() -> None:
    assert never_batched("cpu", Chosen(exact=True)) is None
    assert "GENAI_EXACT is true" in (never_batched("cuda", Chosen(exact=True)) or "")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("scheduler", ["auto", "batched"])
def test_a_batch_that_can_be_takes_the_same_option(tmp_path: Path, device: str, scheduler: str) -> None:
    check_runner(device, tmp_path, Chosen(scheduler), check_device(PARALLEL, device))


@pytest.mark.parametrize(("session", "helps"), [({}, True), ({"execution_mode": "parallel"}, False)])
def test_refused_option_of_a_generator_names_what_helps(session: dict[str, str], helps: bool) -> None:
    cuda = {"session": session, "provider": {"cuda": {"enable_cuda_graph": True}}}
    with pytest.raises(ConfigurationError, match="enable_cuda_graph reaches only") as raised:
        check_reach("cuda", check_device(cuda, "cuda"), Reach.BATCHED, "requests run in a batch")
    assert ("GENAI_SCHEDULER=generator" in raised.value.message) == helps
