"""The bare library on the same model, in a separate process."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genai_server.tools.bench.bench_load import Outcome
from genai_server.tools.bench.measured_answer import Answer

# Started by name: importing it would load the engine and the library.
_BARE_LOOP = "genai_server.engine.measuring.bare_loop"
TUNED = "library"
SHIPPED = "library as shipped"
_OPTIONS = {TUNED: ["--threads", "0"], SHIPPED: []}


async def run_bare_loop(label: str, model_dir: Path, prompt_tokens: int, output_tokens: int, runs: int) -> Outcome:
    """The loop of `og.Generator`: TUNED with as many threads as usable cores, SHIPPED as the directory sets it."""
    command = [sys.executable, "-m", _BARE_LOOP, str(model_dir), *_OPTIONS[label]]
    command += ["--prompt-tokens", str(prompt_tokens), "--output-tokens", str(output_tokens), "--runs", str(runs)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return Outcome([], [reason or f"{_BARE_LOOP} ended with status {process.returncode}"])
    # The result is the last line: native libraries may print before it.
    report = json.loads(output.decode().strip().rpartition("\n")[2])
    return Outcome(_answers(prompt_tokens, report["lengths"][str(prompt_tokens)]), [])


def _answers(prompt_tokens: int, runs: Sequence[dict[str, Any]]) -> list[Answer]:
    return [
        Answer(run["sent"], tuple(run["tokens"]), run["tokens"][-1], prompt_tokens, len(run["tokens"]), 0, 0)
        for run in runs
    ]
