"""The part of `genai-server tune` that builds and measures a model with each block size of its weights.

The built models are removed: the result is only the size to export the model with.
"""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from genai_server.config.environment import builder_environment
from genai_server.errors import ConfigurationError, ExportFailed
from genai_server.hub import builder
from genai_server.hub.builder import Build
from genai_server.plain_tables import Rows
from genai_server.tools.tune.measured import TITLES, Rates, row

SIZES = (32, 128)
_PRECISIONS = {4: "int4", 8: "int8"}
_BEST_BLOCK = 128


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


def table_of_blocks(rates: Mapping[int, Rates], model_dir: Path, export: str) -> list[str | Rows]:
    """A table of the rates by block size, and the command to build with the best one if the model has another.

    `export` are the arguments to build it with.
    """
    best = max(rates, key=lambda size: math.prod(rates[size]))
    rows = [TITLES, *(row(f"block size {size}", *rates[size], chosen=size == best) for size in rates)]
    if _sizes(model_dir) == [best]:
        return [rows, "the model has the best block size"]
    return [rows, f"build it again with: genai-server export {export} --extra block_size={best}"]


def _sizes(model_dir: Path) -> list[int]:
    from genai_server.engine.measuring.tuning import quantized_blocks

    return sorted({size for _, size in quantized_blocks(model_dir)})


def blocks(model_dir: Path) -> str:
    """A sentence on the weights' block size, which cannot be changed without the original weights."""
    if not (sizes := _sizes(model_dir)):
        return "block size: the weights are not quantized in blocks"
    shown = f"block size: {', '.join(map(str, sizes))}"
    if max(sizes) >= _BEST_BLOCK:
        return shown
    return (
        f"{shown}; --original DIR measures others, which need the original weights. "
        f"On CPUs {_BEST_BLOCK} is usually faster"
    )
