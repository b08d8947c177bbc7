"""Runs onnxruntime-genai's model builder in a separate process, with the settings that are fastest for this server."""

import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from genai_server.errors import ConfigurationError, ExportFailed
from genai_server.installation import this_installation

LOG = "export.log"
# The builder's names for this server's devices.
PROVIDERS = {"cpu": "cpu", "cuda": "cuda", "directml": "dml"}
PRECISIONS = ("int4", "int8", "fp16", "bf16", "fp32")
# Modules that the builder imports and serving does not need.
_NEEDED = ("torch", "transformers", "onnx_ir", "onnxruntime_genai.models.builder")
# Files that the builder rewrites in another form; the original's are kept instead.
_KEPT = ("tokenizer.json", "chat_template.jinja")
_STEP = re.compile(r"^(Reading [\w ]+|Saving (?:ONNX model|GenAI config|processing files))(?: in .*)?$")
_LAST_LINES = 15


@dataclass(frozen=True)
class Build:
    """What to build."""

    # A directory in Hugging Face's format.
    source: Path
    # A directory that does not exist yet.
    target: Path
    precision: str
    device: str
    # Further options of the builder, `NAME=VALUE`.
    extra: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """The options for the builder.

        The prompt needs only the logits of its last token. The other options suit a CPU's kernels best (measurements in
        docs/performance.md).
        """
        chosen = {"prune_lm_head": "true"}
        if self.device == "cpu" and self.precision in ("int4", "int8"):
            chosen |= {"block_size": "128", "accuracy_level": "4"}
        chosen |= dict(option.split("=", 1) for option in self.extra)
        return [f"{name}={value}" for name, value in chosen.items()]


def check_environment(python: Path) -> None:
    """Check that a Python interpreter has what the builder needs. Raises ConfigurationError."""
    code = f"import importlib.util as u; print(*[n for n in {_NEEDED!r} if not _has(u, n)])"
    code = "def _has(u, n):\n try: return u.find_spec(n)\n except ImportError: return None\n" + code
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(f"--python={python}: cannot be run: {error}") from None
    if missing := done.stdout.split():
        raise ConfigurationError(
            f"{python} lacks {', '.join(missing)}: {this_installation().command('cpu', 'export', python=str(python))}, "
            "or name another environment's Python with --python"
        )


def build(build: Build, python: Path, environment: dict[str, str], tell: Callable[[str], None]) -> None:
    """Run the builder and report each step; its output goes to the file LOG in the target.

    Raises ExportFailed with the end of that output.
    """
    command = [str(python), "-u", "-m", "onnxruntime_genai.models.builder", "-i", str(build.source)]
    command += ["-o", str(build.target), "-p", build.precision, "-e", PROVIDERS[build.device]]
    build.target.mkdir(parents=True, exist_ok=True)
    log = build.target / LOG
    with tempfile.TemporaryDirectory(dir=build.target) as cache:
        status, last = _run([*command, "-c", cache, "--extra_options", *build.options], environment, log, tell)
    if status:
        kept = build.target.parent / f"{build.target.stem.strip('.')}.log"
        shutil.copy(log, kept)
        raise ExportFailed("\n".join([f"the model builder failed (status {status}); its log is {kept}", *last]))
    for name in _KEPT:
        if (build.source / name).is_file():
            shutil.copy(build.source / name, build.target)


def _run(
    command: Sequence[str], environment: dict[str, str], log: Path, tell: Callable[[str], None]
) -> tuple[int, list[str]]:
    """The exit status and the last lines of output."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with (
        log.open("w", encoding="utf-8") as out,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                last.append(line.rstrip())
                if step := _STEP.match(line):
                    tell(step[1])
        except BaseException:
            process.kill()
            raise
    return process.returncode, list(last)
