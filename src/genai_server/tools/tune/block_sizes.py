"""The part of `genai-server tune` that builds and measures a model with each block size of its weights.

The built models are removed: the result is only the size to export the model with.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from genai_server.config.environment import builder_environment
from genai_server.errors import ConfigurationError, ExportFailed
from genai_server.hub import builder
from genai_server.hub.builder import Build

SIZES = (32, 128)
_PRECISIONS = {4: "int4", 8: "int8"}

# Prompt tokens and generated tokens per second.
Rates = tuple[float, float]


@dataclass(frozen=True)
class Original:
    """A model in Hugging Face's format."""

    source: Path
    # Python of the environment to build it with.
    python: Path

    def check(self, model_dir: Path) -> str:
        """The precision to build with, that of the model directory. Raises ConfigurationError."""
        from genai_server.engine.measuring.tuning import quantized_blocks

        if not (self.source / "config.json").is_file():
            raise ConfigurationError(f"--original={self.source}: Hugging Face's config.json is missing")
        # In mixed precision, the few most important weights have more bits.
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
    """The rates of the model with each block size, from `measure`, called with each built directory.

    The directories lie next to `model_dir` while they are measured. Raises ExportFailed; the builder's log is then in
    the same place.
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
