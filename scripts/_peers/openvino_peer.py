"""OpenVINO GenAI's continuous batching behind a small HTTP server, since it has none of its own."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

from .environment import Environment
from .peer import SLOTS, THREADS, Launch, Model, checkpoint_of, made_from

_FRONT = Path(__file__).with_name("openvino_front.py")
_PACKAGES = ["openvino-genai", "openvino-tokenizers", "optimum-intel[openvino]", "nncf", "starlette", "uvicorn"]
# nncf asks for torchvision, which has no build for PyTorch's CPU build and breaks transformers' import.
_BROKEN = "torchvision"
# Of real weights, the form that is as close to them as int8 here.
_PRECISION_OF_REAL = ["--weight-format", "int8"]
# All matrices have 4 bits, including the output's, as in the others.
_PRECISION = ["--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0", "--all-layers"]


def prepare(folder: Path, model: Model) -> Launch:
    """Install it and export the checkpoint."""
    environment = Environment(folder)
    environment.install(["torch==2.13.0", "transformers==5.5.*", *_PACKAGES])
    site_packages = next(folder.glob("lib/python*/site-packages"))
    if (site_packages / _BROKEN).exists():
        environment.run([environment.python, "-m", "pip", "uninstall", "--yes", _BROKEN])
    precision = _PRECISION_OF_REAL if model.real else _PRECISION
    exported = folder / f"model-{made_from(model)}{'-real' if model.real else ''}"
    if not exported.exists():
        unfinished = folder / "unfinished-model"
        export: list[str | Path] = [folder / "bin" / "optimum-cli", "export", "openvino", "--model"]
        task = ["--task", "text-generation-with-past"]
        environment.run([*export, checkpoint_of(model), *task, *precision, unfinished])
        unfinished.rename(exported)
    (installed,) = distributions(name="openvino-genai", path=[str(site_packages)])
    sizes = ["--threads", str(THREADS), "--slots", str(SLOTS)]
    front = [str(environment.python), str(_FRONT), str(exported), *sizes]
    return Launch(
        command=lambda port: [*front, "--port", str(port)],
        version=f"OpenVINO GenAI {installed.version}",
        weights=precision[1],
    )
