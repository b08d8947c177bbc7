"""Finds genai-server-native, the library with this project's own ONNX operators for CPUs, and chooses the fastest of
its kernels that work on this processor.
"""

import hashlib
import importlib
import importlib.util
import json
import logging
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from genai_server.engine.host import processor
from genai_server.options.device import DeviceOptions
from genai_server.options.providers import CPU

log = logging.getLogger(__name__)
_PACKAGE = "genai_server_native"
_TRIAL = "genai_server.engine.model.native_trial"
_TRIAL_SECONDS = 60.0
# The instruction sets with products of bfloat16 numbers.
_WITH_BF16 = ("amx", "avx512bf16")


NOT_INSTALLED = "genai-server-native, which has the operators of a batch on CPUs, is not installed"


def is_installed() -> bool:
    """Whether the package genai-server-native and its shared library are installed."""
    return importlib.util.find_spec(_PACKAGE) is not None and native_library().is_file()


def _package() -> Any:
    return importlib.import_module(_PACKAGE)


def native_library() -> Path:
    """Path of the shared library of the package genai-server-native, which is registered with ONNX Runtime. Raises
    ImportError if the package is not installed.
    """
    path: Path = _package().library()
    return path


@cache
def library_key() -> str:
    """Hash of the shared library of genai-server-native and the type of processor, in hexadecimal. As long as it is
    equal, its operators compute bitwise the same results, so stored results can be used again.
    """
    return hashlib.sha256(native_library().read_bytes() + processor().encode()).hexdigest()[:16]


def why_not_native(options: DeviceOptions, cache_dir: Path | None) -> str | None:
    """Return the reason why a device cannot run a batch with the operators of genai-server-native; None if it can. In
    that case the kernels that this process will use have been chosen.

    `options` are those of the device. At the first call on a processor, the kernels are tried in a separate process.
    The result is stored in `cache_dir`, unless that is None.
    """
    if accelerators := [provider.name for provider in options.providers if provider.name != CPU]:
        return f"a batch on a CPU has operators of its own, and the provider {accelerators[0]} runs the graph"
    if not is_installed():
        return NOT_INSTALLED
    chosen = choose_instruction_set(cache_dir)
    if chosen is None:
        return "none of the kernels of genai-server-native computes rightly on this processor"
    _package().use(chosen)
    return None


def multiplies_bf16(cache_dir: Path | None) -> bool:
    """Whether genai-server-native's attention kernels for this processor can multiply bfloat16 numbers. `cache_dir` is
    the folder with the stored choice of kernels, or None.
    """
    return choose_instruction_set(cache_dir) in _WITH_BF16


def choose_instruction_set(cache_dir: Path | None) -> str | None:
    """Return the name of the fastest instruction set for which genai-server-native has kernels that compute correctly
    on this processor; None if there is none.

    The result is stored in `cache_dir`, unless that is None, for this library and this processor. It is not stored if a
    trial could not run for lack of time or memory, which may be different at the next start.
    """
    cache_file = None if cache_dir is None else cache_dir / f"native-{library_key()}.json"
    usable = _package().instruction_sets()
    if cache_file is not None:
        try:
            cached: str | None = json.loads(cache_file.read_text(encoding="utf-8"))["instruction_set"]
        except (OSError, ValueError, KeyError, TypeError):
            cached = ""
        if cached is None or cached in usable:
            return cached
    tried: list[bool | None] = []
    chosen = None
    for name in usable:
        tried.append(_works(name))
        if tried[-1]:
            chosen = name
            break
    if cache_file is not None and None not in tried:
        try:
            cache_file.parent.mkdir(parents=True, exist_ok=True)
            cache_file.write_text(json.dumps({"instruction_set": chosen}), encoding="utf-8")
        except OSError as error:
            log.warning("what the trial of the kernels found cannot be kept in %s: %s", cache_dir, error)
    return chosen


@cache
def _works(instruction_set: str) -> bool | None:
    """Whether genai-server-native's kernels for an instruction set compute correctly on this processor; None if they
    could not be tried, for instance for lack of time.

    They are tried in a separate process, because faulty kernels may crash it.
    """
    command = [sys.executable, "-m", _TRIAL, instruction_set]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # messages of libraries may have another encoding
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        works, why = None, str(error)
    else:
        if ended.returncode == 0:
            return True
        works, why = False, ended.stderr.strip().rpartition("\n")[2] or f"status {ended.returncode}"
    log.warning("the kernels of genai-server-native for %s are not used: %s", instruction_set, why)
    return works
