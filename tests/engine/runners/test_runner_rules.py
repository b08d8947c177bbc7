"""What the settings of a device tell of its runner before anything is loaded."""

from pathlib import Path

import pytest

from genai_server.engine.runners.runner_rules import check_runner
from genai_server.errors import ConfigurationError
from genai_server.options.check import check_device

SECTIONS = {"providers": ["openvino", "cpu"], "provider": {"openvino": {"package": "provider_of_nobody"}}}


def test_a_provider_whose_package_is_not_installed_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = check_device(SECTIONS, "cpu")
    with pytest.raises(
        ConfigurationError, match='package="provider_of_nobody": it is not installed; pip install provider-of-nobody'
    ):
        check_runner("cpu", tmp_path, "auto", 0, options)
    (tmp_path / "provider_of_nobody.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    check_runner("cpu", tmp_path, "auto", 0, options)


@pytest.mark.parametrize(
    ("device", "scheduler", "kv_cache_bytes", "message"),
    [
        ("cuda", "auto", 0, "execution_mode reaches only .* a batch on cuda was never tried"),
        ("cuda", "batched", 0, "GENAI_SCHEDULER=batched: .*GENAI_KV_CACHE_BYTES must be given"),
        ("webgpu", "batched", 1, "GENAI_SCHEDULER=batched: a batch runs on cpu, cuda, tensorrt, not on webgpu"),
        ("cpu", "library", 0, "execution_mode reaches only .*onnxruntime-genai's own batch"),
    ],
)
def test_a_runner_that_cannot_be_had_or_lacks_an_option_is_refused(
    tmp_path: Path, device: str, scheduler: str, kv_cache_bytes: int, message: str
) -> None:
    options = check_device({"session": {"execution_mode": "parallel"}}, device)
    with pytest.raises(ConfigurationError, match=message):
        check_runner(device, tmp_path, scheduler, kv_cache_bytes, options)


@pytest.mark.parametrize(("device", "scheduler", "kv_cache_bytes"), [("cpu", "auto", 0), ("cuda", "batched", 1)])
def test_a_batch_that_can_be_takes_the_same_option(
    tmp_path: Path, device: str, scheduler: str, kv_cache_bytes: int
) -> None:
    options = check_device({"session": {"execution_mode": "parallel"}}, device)
    check_runner(device, tmp_path, scheduler, kv_cache_bytes, options)
