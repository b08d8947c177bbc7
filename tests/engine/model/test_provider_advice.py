"""What to install for a provider that the libraries lack."""

import importlib.metadata
import sys

import pytest

from genai_server.engine.model.provider_advice import how_to_get, newer_directml


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions of the installed packages, which a test fills in."""
    found: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


def test_extra_with_cuda_is_named_unless_it_is_installed(installed: dict[str, str]) -> None:
    assert how_to_get("cuda").startswith("; the extra cuda has it: ")
    assert "cuda" in how_to_get("cuda").partition(": ")[2]
    installed["onnxruntime-genai-cuda"] = "0.18.0"
    assert how_to_get("cuda") == ""


def test_directml_is_had_by_winml(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert how_to_get("directml") == "; DirectML is for Windows only"
    monkeypatch.setattr(sys, "platform", "win32")
    assert how_to_get("directml").startswith("; the extra winml has it: ")


def test_plugin_is_named_with_its_package(installed: dict[str, str]) -> None:
    assert how_to_get("openvino").startswith("; pip install onnxruntime-ep-openvino, and write package = ")
    assert how_to_get("tensorrt") == ""


def test_old_library_for_directml_points_to_the_new_one(installed: dict[str, str]) -> None:
    assert newer_directml() == ""
    installed["onnxruntime-genai-directml"] = "0.13.1"
    words = "; onnxruntime-genai-directml 0.13.1 is the last of its kind, the extra winml has today's library: "
    assert newer_directml().startswith(words)
