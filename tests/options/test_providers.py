"""Errors for unknown devices."""

import pytest

from genai_server.options.providers import PROVIDERS, suggested_devices


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("dml", "directml"),
        ("DML:1", "directml:1"),
        ("CPU", "cpu"),
        ("cuda0", "cuda:0"),
        ("CUDA-1", "cuda:1"),
        ("cuda:1000", "cuda"),
        ("cdua", "cuda"),
        ("openvno", "openvino"),
        ("trt", "tensorrt"),
        ("NvTensorRtRtx", "nv_tensorrt_rtx"),
        ("CUDAExecutionProvider", "cuda"),
        ("gpu", "cuda (NVIDIA) or directml (Windows)"),
        ("gpu0", "cuda:0 (NVIDIA) or directml:0 (Windows)"),
    ],
)
def test_similar_device_is_suggested(given: str, meant: str) -> None:
    assert suggested_devices(given) == f"; did you mean {meant}?"


@pytest.mark.parametrize("given", ["tpu", "rocm", "", "1", "c" * 1_000_000])
def test_all_devices_are_listed_if_none_is_similar(given: str) -> None:
    assert suggested_devices(given) == f"; known are {', '.join(PROVIDERS)}"
