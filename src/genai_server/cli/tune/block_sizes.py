"""The part of `genai-server tune` that builds a model anew with each size of its weights' blocks, and measures it.

What it builds is removed again: it says only which size to export the model with.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from genai_server.config import builder_environment
from genai_server.errors import ConfigurationError, ExportFailed
from genai_server.hub import builder
from genai_server.hub.builder import Build

SIZES = (32, 128)
_PRECISIONS = {4: "int4", 8: "int8"}

# Tokens a second of prompts, and of answers.
Rates = tuple[float, float]


@dataclass(frozen=True)
class Original:
    """A model in Hugging Face's form, and the Python whose environment can build from it."""

    source: Path
    python: Path

    def check(self, model_dir: Path) -> str:
        """The precision to build with, that of the model directory. Raises ConfigurationError."""
        from genai_server.engine.measuring.tuning import quantized_blocks

        if not (self.source / "config.json").is_file():
            raise ConfigurationError(f"--original={self.source}: Hugging Face's config.json is not there")
        # Of mixed weights the few that matter most have more bits.
        bits = min((bits for bits, _ in quantized_blocks(model_dir)), default=0)
        if bits not in _PRECISIONS:
            raise ConfigurationError(
                f"--original={self.source}: the weights of {model_dir} are not int4 or int8 in blocks, so there is no "
                "size to choose"
            )
        builder.check_environment(self.python)
        return _PRECISIONS[bits]


def measure_each(
    original: Original, model_dir: Path, precision: str, measure: Callable[[Path], Rates], show: Callable[[str], None]
) -> dict[int, Rates]:
    """What `measure` says of the directory that is built with each size; it lies beside `model_dir` meanwhile.

    Raises ExportFailed; the builder's log then lies there, too.
    """
    found: dict[int, Rates] = {}
    folder = model_dir.resolve()
    for size in SIZES:
        target = folder.with_name(f".{folder.name}-blocks-of-{size}")
        shutil.rmtree(target, ignore_errors=True)
        built = Build(original.source, target, precision, "cpu", (f"block_size={size}",))
        show(f"blocks of {size}")
        try:
            builder.build(built, original.python, builder_environment(), lambda _: None)
            found[size] = measure(target)
        except OSError as error:
            raise ExportFailed(f"{error.filename or target}: {error.strerror}") from None
        finally:
            shutil.rmtree(target, ignore_errors=True)
    return found
