"""Checks a model after it was built: `check_graphs` loads its graphs, and `measure` compares the model with the one
from which it was built.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genai_server.errors import ExportFailed

# The file in a built directory.
QUALITY = "quality.json"
_PROGRAM = Path(__file__).with_name("measure_export.py")
# A graph that the program writes next to the weights.
_FULL = ".measured.onnx"
# Within which the measurement ends, and how much longer its process may take.
_SECONDS, _GRACE = 100, 20
_LOAD = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
for path in sys.argv[1:]:
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise SystemExit(f"{path}: {error}")
"""


def check_graphs(folder: Path, environment: dict[str, str]) -> None:
    """Load each ONNX graph in the directory `folder` once, in a separate process with the variables `environment`.
    Raises ExportFailed, with the reason, if a graph cannot be loaded.
    """
    paths = [str(path) for path in sorted(folder.glob("*.onnx"))]
    try:
        done = _run([sys.executable, "-c", _LOAD, *paths], environment, None)
    except OSError as error:
        raise ExportFailed(f"{error.filename or sys.executable}: {error.strerror}") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"its process ended with status {done.returncode}"
        raise ExportFailed(f"ONNX Runtime cannot load what the builder wrote: {reason}")


def measure(folder: Path, source: Path, python: Path, environment: dict[str, str]) -> str:
    """Compare the built decoder in `folder` with the model in `source` from which it was built, by a program in the
    interpreter `python`. The result is written to the file QUALITY in `folder`, and returned as a sentence for the
    user.

    If the model cannot be measured, the sentence says why; no error is raised.
    """
    command = [str(python), str(_PROGRAM), str(folder), str(source), str(time.time() + _SECONDS)]
    reason = "that takes more than two minutes here"
    try:
        done = _run(command, environment, _SECONDS + _GRACE)
        output = done.stdout
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no result")
    except subprocess.TimeoutExpired as error:
        output = _text(error.stdout)
    except OSError as error:
        output, reason = "", str(error.strerror)
    finally:
        (folder / _FULL).unlink(missing_ok=True)  # a program that was ended leaves it
    results = [line for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    if not results:
        return f"its quality was not measured: {reason}"
    result = json.loads(results[-1])
    (folder / QUALITY).write_text(json.dumps(result, indent=4) + "\n", encoding="utf-8")
    return summary(result)


def summary(result: dict[str, Any]) -> str:
    """Return a sentence for the user with the result of comparing a built model with its source: the perplexities of
    both, and how often both prefer the same next token. `result` is the contents of the file QUALITY.
    """
    return (
        f"perplexity {result['perplexity']:.2f} on {result['tokens']} tokens, that of the source "
        f"{result['perplexity_of_source']:.2f}; both prefer the same token at {result['same_top_token']:.1%} of them"
    )


def _text(output: str | bytes | None) -> str:
    """Return as text the output that a process had written when it was ended at a timeout. subprocess provides text or
    bytes, or None for no output, depending on the operating system.
    """
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _run(
    command: Sequence[str], environment: dict[str, str], limit: float | None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        env={**environment, "TQDM_DISABLE": "1"} if environment else None,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=limit,
        check=False,
    )
