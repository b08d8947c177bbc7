"""Builds model directories (`build`) by running a model builder in a separate process, after choosing it (`choose`),
checking that it can build the model, and estimating the cost (`cost_of`).

onnxruntime-genai's builder builds decoders, with the settings that are fastest for this server; mobius, another builder
of Microsoft's, builds decoders that onnxruntime-genai's cannot build. Encoders, which neither of them supports, are
built by a program of this package.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from genai_server.errors import ConfigurationError, ExportFailed, ModelDirectoryError
from genai_server.hub.architectures import (
    check_architecture,
    count_weights,
    has_draft_head,
    known_architectures,
    read_source_config,
    why_not_mobius,
)
from genai_server.hub.quantized_checkpoint import Quantization, check_tensors
from genai_server.model_files.config_files import CONFIG, GENAI_CONFIG, MASK_TOKEN, read_object
from genai_server.model_files.pooling_model import MODULE_FILES, MODULES, Task, is_decoder
from genai_server.model_files.speech_and_vision import FIRST_TIME, GENERATION
from genai_server.system.installation import this_installation

LOG = "export.log"
# The builder's names for this server's devices.
PROVIDERS = {"cpu": "cpu", "cuda": "cuda", "directml": "dml"}
PRECISIONS = ("int4", "int8", "fp16", "bf16", "fp32")
# Precisions for encoders; others would need a calibration, or are slower on CPUs.
ENCODER_PRECISIONS = ("fp32", "int8")
# What a build is called whose weights are those of a GGUF file, in place of a precision.
AS_STORED = "gguf"
# Modules that the builder imports and serving does not need.
_LIBRARY = "onnxruntime_genai"
_BUILDER = f"{_LIBRARY}.models.builder"
_NEEDED = ("torch", "transformers", "onnx_ir", _LIBRARY, _BUILDER)
NEEDED_FOR_MOBIUS = ("torch", "transformers", "onnxruntime", "mobius")
NEEDED_FOR_ENCODERS = ("torch", "transformers", "onnxscript", "onnxruntime")
NEEDED_FOR_GGUF = ("torch", "transformers", "transformers.integrations.gguf", "gguf", "accelerate")
_ENCODERS = Path(__file__).with_name("export_encoder.py")
_PROGRAM = Path(__file__).with_name("build_graph.py")
_MOBIUS = Path(__file__).with_name("build_mobius.py")
# Which builder is asked for; AUTO takes mobius for what the other cannot build.
AUTO, GENAI, MOBIUS = BUILDERS = ("auto", "onnxruntime-genai", "mobius")
_PRECISIONS_OF_MOBIUS = ("int4", "int8", "fp32")
# Values of a row that have one scale in 8 bits or 4 on CPUs; larger blocks lose more (docs/performance.md).
BLOCK_SIZE = 32
# Architectures that the builder can read with corrections only.
_CORRECTED_ARCHITECTURES = ("Gemma3ForCausalLM",)
# The answers of a decoder that reranks, if its directory does not name them.
_YES, _NO = "yes", "no"
# Files that the builder rewrites in another form; the original ones are kept instead.
_TOKENIZER = "tokenizer.json"
_KEPT = (_TOKENIZER, "chat_template.jinja")
# How models answer whose files do not say it, as the authors of their families recommend, by `model_type`. Greedy
# answers of small models repeat themselves without an end.
_SAMPLING: dict[str, dict[str, float]] = {
    "llama": {"temperature": 0.6, "top_p": 0.9},
    "qwen2": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    "qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "gemma2": {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
    "gemma3_text": {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
    "lfm2": {"temperature": 0.3, "repetition_penalty": 1.05},
}
_OTHER_SAMPLING: dict[str, float] = {"temperature": 0.7, "top_p": 0.95}
# What Transformers writes into a generation_config.json that it made up.
_FROM_MODEL_CONFIG = "_from_model_config"
# Files that describe how the vectors of tokens become one, or logits become a score.
_POOLING = (CONFIG, *MODULE_FILES)
# Types of models that the builder misspells, as onnxruntime-genai has them.
_TYPES = {"qwen3vl": "qwen3_vl"}
_STEP = re.compile(r"^(Reading [\w ]+|Rounding [\w ]+|Saving (?:ONNX model|GenAI config|processing files))(?: in .*)?$")
_LAST_LINES = 15


@dataclass(frozen=True)
class Build:
    """What is to be built, and how: the source directory, the target directory, precision, device and options. The
    command `export` creates it; `choose` selects the model builder, and `build` runs it.
    """

    # A directory in Hugging Face's format.
    source: Path
    # A directory that does not exist yet.
    target: Path
    precision: str
    device: str
    # Further options of the builder, `NAME=VALUE`.
    extra: tuple[str, ...] = ()
    task: Task = Task.GENERATE
    # How the source's weights are quantized; None if they are not.
    quantization: Quantization | None = None
    # Number of weights in a row that share a scale, for CPUs.
    block_size: int = BLOCK_SIZE
    # The GGUF file whose quantized weights are kept; `source` is what it was unpacked to. None for other sources.
    gguf: Path | None = None
    # Whether mobius builds the model instead of onnxruntime-genai's builder.
    uses_mobius: bool = False

    @property
    def is_encoder(self) -> bool:
        """Whether the model is an encoder, which is built by export_encoder.py.

        Raises ModelDirectoryError if the source is not a valid model directory.
        """
        return self.task.pools and not is_decoder(self.source)

    @property
    def has_eight_bit_ends(self) -> bool:
        """Whether the embedding and the output head of the built model get weights of 8 bits, which are stored once if
        both are the same matrix.
        """
        if self.precision not in ("int4", "int8") or self.device != "cpu" or self.gguf is not None or self.uses_mobius:
            return False
        config = read_source_config(self.source)
        is_quantized = self.quantization is not None or "quantization_config" in config
        # A head for drafts shares both with the model, under names of the builder's.
        return not (is_quantized or self.task is Task.TRANSCRIBE or self.is_encoder or has_draft_head(config))

    @property
    def is_mixed(self) -> bool:
        """Whether the weights are quantized by the method k_quant_mixed: to 4 bits, and in layers where that would
        change answers most to 8 bits.

        This method needs rows whose lengths are multiples of the block size. That holds for all models with blocks of
        32, but not for every block size that a user may choose.
        """
        options = {option.split("=", 1)[0] for option in self.extra}
        return self.precision == "int4" and self.has_eight_bit_ends and not options & {"block_size", "algo_config"}

    @property
    def options(self) -> list[str]:
        """The options for onnxruntime-genai's builder, as `NAME=VALUE`: those that are fastest for this server, and the
        user's own. There are none for encoders and mobius.

        The graph computes only the logits of a prompt's last token. On CPUs, activations are rounded to 8 bits, and
        weights have 4 bits where that hardly changes the answers, and 8 elsewhere (measurements: docs/performance.md).
        """
        if self.is_encoder or self.uses_mobius:
            return []
        has_head = has_draft_head(read_source_config(self.source))
        chosen = {
            Task.GENERATE: {"prune_lm_head": "true"},
            Task.EMBED: {"exclude_lm_head": "true"},
            Task.RERANK: {"prune_lm_head": "false"},
            Task.TRANSCRIBE: {},
        }[self.task].copy()
        if self.gguf is not None:
            chosen |= {"accuracy_level": "4"}
        elif self.device == "cpu" and self.precision in ("int4", "int8"):
            chosen |= {"block_size": str(self.block_size), "accuracy_level": "4"}
        if self.is_mixed:
            chosen |= {"algo_config": "k_quant_mixed"}
        if has_head and self.task is Task.GENERATE:
            chosen["prune_lm_head"] = "false"  # the head reads the states of all tokens
        elif has_head and self.device == "cpu":
            chosen["exclude_mtp"] = "true"
        chosen |= dict(option.split("=", 1) for option in self.extra)
        return [f"{name}={value}" for name, value in chosen.items()]


def check_environment(python: Path, needed: Sequence[str] = _NEEDED) -> None:
    """Raise ConfigurationError, with the names of the missing modules and how to install them, if the Python
    interpreter `python` lacks some of the modules `needed`. By default, these are what onnxruntime-genai's builder
    imports.
    """
    if missing := missing_modules(python, needed):
        raise ConfigurationError(
            f"{python} lacks {', '.join(missing)}: "
            f"{this_installation().command(*extras_for(missing), python=str(python))}, "
            "or name another environment's Python with --python"
        )


def extras_for(missing: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the extras of the package genai-server, such as "export", that install the Python modules
    `missing`.

    The extra for the device is only included if onnxruntime-genai itself is missing, because the package for another
    device may provide that module.
    """
    return ("cpu", "export") if _LIBRARY in missing else ("export",)


def missing_modules(python: Path, needed: Sequence[str] = _NEEDED) -> list[str]:
    """Return those of the modules `needed` that cannot be found by the Python interpreter `python`.

    Raises ConfigurationError if the interpreter cannot be run.
    """
    code = f"import importlib.util as u; print(*[n for n in {tuple(needed)!r} if not _has(u, n)])"
    code = "def _has(u, n):\n try: return u.find_spec(n)\n except ImportError: return None\n" + code
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(f"--python={python}: cannot be run: {error}") from None
    return done.stdout.split()


def choose(build: Build, python: Path, builder: str, *, unchecked: bool = False) -> Build:
    """Choose the model builder for a build, and return a copy of the build with this choice.

    `builder` is one of BUILDERS, which may leave the choice to this function, and `python` the interpreter that will
    run the builder. The source directory needs to contain only the files that describe the model, not its weights. With
    `unchecked`, models that a builder is not known to support are built, too. Raises ConfigurationError, with the
    reason, if no builder can be used.
    """
    if builder != MOBIUS:
        try:
            if not unchecked:
                check_source(build, python)
        except ConfigurationError:
            if builder == GENAI or _why_not_with_mobius(build, unchecked=False) is not None:
                raise
        else:
            return build
    if (reason := _why_not_with_mobius(build, unchecked=unchecked)) is not None:
        raise ConfigurationError(f"--builder {MOBIUS}: {reason}")
    check_environment(python, NEEDED_FOR_MOBIUS)
    return replace(build, uses_mobius=True)


def _why_not_with_mobius(build: Build, *, unchecked: bool) -> str | None:
    """Return the reason why a build cannot be made with Microsoft's builder mobius; None if it can be. With
    `unchecked`, models whose built graphs were never compared are accepted.
    """
    if build.is_encoder or build.task is not Task.GENERATE:
        return f"it builds models for chats only, and this one's task is {build.task}"
    if build.gguf is not None or build.quantization is not None:
        return "it does not keep weights that are quantized already"
    if build.device != "cpu" or build.precision not in _PRECISIONS_OF_MOBIUS:
        chosen = f"given {build.device} and {build.precision}"
        return f"it builds for the device cpu in {', '.join(_PRECISIONS_OF_MOBIUS)}; {chosen}"
    if build.extra:
        return f"it has no further options; given {build.extra[0]}"
    return None if unchecked else why_not_mobius(read_source_config(build.source))


def check_source(build: Build, python: Path) -> None:
    """Raise ConfigurationError, with the reason, if onnxruntime-genai's model builder cannot build the model of
    `build`. The builder is the one that the interpreter `python` has, whose version decides.

    The source directory needs to contain only config.json; quantized weights are checked if they are there. Encoders
    are not checked, because another program builds them.
    """
    if build.is_encoder:
        return
    if build.task is Task.TRANSCRIBE:
        _check_timestamps(build.source)
    if build.quantization is not None:
        check_tensors(build.source, build.quantization)
    code = f"import importlib.util as u; print(u.find_spec({_BUILDER!r}).origin)"
    try:
        run = subprocess.run([python, "-c", code], capture_output=True, text=True, errors="replace", check=True)
        source = Path(run.stdout.splitlines()[-1]).read_text(encoding="utf-8")
    except (OSError, ValueError, LookupError, subprocess.CalledProcessError):
        source = ""  # the build itself says what is wrong
    check_architecture(
        read_source_config(build.source),
        known_architectures(source),
        precision=build.precision,
        device=build.device,
        options=build.options,
    )


def _check_timestamps(source: Path) -> None:
    """Raise ConfigurationError if the tokenizer of the speech model in `source` lacks the tokens for timestamps."""
    try:
        added = read_object(source / _TOKENIZER)["added_tokens"]
        has_times = any(token["content"] == FIRST_TIME for token in added)
    except (ModelDirectoryError, LookupError, TypeError):
        return  # it is not there yet, or has another form, which the builder reports
    if not has_times:
        raise ConfigurationError(
            f"{_TOKENIZER} of the source lacks {FIRST_TIME} and the other tokens for times, as that of CTranslate2's "
            "models does; take the one of the original model"
        )


def build(build: Build, python: Path, environment: dict[str, str], report: Callable[[str], None]) -> None:
    """Build a model: run its model builder with the interpreter `python` and the variables `environment`, and correct
    and complete the files that it has written to the target directory. `report` is called with a line about each step;
    the builder's whole output goes to the file LOG in the target.

    Raises ExportFailed, with the last lines of the output, if the builder fails.
    """
    build.target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build.target) as cache:
        status, last = run_logged(
            [str(python), "-u", *_arguments(build, cache)], environment, build.target / LOG, report
        )
    if status:
        log_copy = build.target.parent / f"{build.target.stem.strip('.')}.log"
        shutil.copy(build.target / LOG, log_copy)
        raise ExportFailed("\n".join([f"the model builder failed (status {status}); its log is {log_copy}", *last]))
    if not build.is_encoder:
        _copy(build, _KEPT)
        _correct(build.target / GENAI_CONFIG, build.device)
        if build.task is Task.GENERATE:
            _add_sampling(build)
            if MASK_TOKEN in read_source_config(build.source):
                _copy(build, [CONFIG])
        if build.task.pools:
            _add_pooling(build)
        if build.task is Task.TRANSCRIBE:
            _copy(build, [GENERATION])


def _arguments(build: Build, cache: str) -> list[str]:
    """Return the arguments with which the Python interpreter runs the model builder of a build. `cache` is a folder for
    temporary files.
    """
    if build.is_encoder:
        return [str(_ENCODERS), str(build.source), str(build.target), build.precision]
    if build.uses_mobius:
        return [str(_MOBIUS), str(build.source), str(build.target), build.precision]
    program = ["-m", _BUILDER]
    if build.gguf is not None:
        program = [str(_PROGRAM), "--gguf", str(build.gguf)]
    elif build.has_eight_bit_ends:
        program = [str(_PROGRAM), "--eight-bit-ends"]
    elif set(_CORRECTED_ARCHITECTURES) & set(read_source_config(build.source).get("architectures") or ()):
        program = [str(_PROGRAM)]
    files = ["-i", str(build.source), "-o", str(build.target), "-c", cache]
    precision = build.precision if build.gguf is None else "fp32"
    options = ["--extra_options", *build.options] if build.options else []
    return [*program, *files, "-p", precision, "-e", PROVIDERS[build.device], *options]


def _correct(path: Path, device: str) -> None:
    """Correct the file genai_config.json at `path`, which the model builder has written for `device`: misspelled model
    types, and a declaration of shared weights with which the model cannot be loaded on a CPU.

    A file that cannot be read is left unchanged; the check of the built model reports it.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        model = config["model"]
        model["type"] = _TYPES.get(model["type"], model["type"])
        for part in (model["decoder"], model.get("mtp", {})) if device == "cpu" else ():
            part.pop("shared_initializers", None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    path.write_text(json.dumps(config, indent=4), encoding="utf-8")


def _add_sampling(build: Build) -> None:
    """Add default sampling parameters to genai_config.json of the built model if the source directory has none. Without
    them, the model would use greedy decoding, which is the builder's default.
    """
    try:
        generation = read_object(build.source / GENERATION)
        if generation and not generation.get(_FROM_MODEL_CONFIG):
            return
    except ModelDirectoryError:
        return
    path = build.target / GENAI_CONFIG
    try:
        config = read_object(path)
        kind = str(read_source_config(build.source).get("model_type"))
        config["search"] |= {"do_sample": True} | _SAMPLING.get(kind, _OTHER_SAMPLING)
    except (ModelDirectoryError, LookupError, TypeError):
        return  # the check reports it
    path.write_text(json.dumps(config, indent=4), encoding="utf-8")


def _copy(build: Build, names: Sequence[str]) -> None:
    """Copy the files with these names from the build's source directory to its target directory. Files that the source
    lacks are skipped.
    """
    for name in names:
        if (build.source / name).is_file():
            shutil.copy(build.source / name, build.target)


def _add_pooling(build: Build) -> None:
    """Copy the files that describe how a decoder's vectors are pooled (for embeddings), or how its logits become a
    score (for reranking), from the build's source to its target. A reranking model without such files gets the usual
    ones.
    """
    _copy(build, _POOLING)
    for path in build.source.glob(f"*/{CONFIG}"):
        (build.target / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, build.target / path.parent.name)
    if build.task is Task.RERANK and not (build.source / MODULES).is_file():
        _add_yes_no_tokens(build.target)


def _add_yes_no_tokens(target: Path) -> None:
    """Configure a reranking model so that its score is the logit of the token "yes" minus the logit of the token "no",
    as in Qwen3-Reranker.

    Raises ExportFailed if the tokenizer lacks one of the tokens.
    """
    vocabulary = json.loads((target / _TOKENIZER).read_text(encoding="utf-8"))["model"]["vocab"]
    if not isinstance(vocabulary, dict) or not {_YES, _NO} <= vocabulary.keys():
        raise ExportFailed(f'the tokenizer lacks the tokens "{_YES}" and "{_NO}", whose logits would be the score')
    types = "sentence_transformers.base.modules.transformer.Transformer", "sentence_transformers.LogitScore"
    paths = "", "1_LogitScore"
    modules = [{"idx": n, "name": str(n), "path": paths[n], "type": types[n]} for n in range(2)]
    (target / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    (target / paths[1]).mkdir(exist_ok=True)
    tokens = {"true_token_id": vocabulary[_YES], "false_token_id": vocabulary[_NO]}
    (target / paths[1] / CONFIG).write_text(json.dumps(tokens, indent=2) + "\n", encoding="utf-8")


def run_logged(
    command: Sequence[str], environment: dict[str, str], log: Path, report: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Run a program with the environment variables `environment` until it ends. `report` is called with each line of
    its output that announces a step; the whole output goes to the file `log`.

    Returns the exit status and the last lines of the output.
    """
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
            env=environment | {"PYTHONIOENCODING": "utf-8"},
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                last.append(line.rstrip())
                if step := _STEP.match(line):
                    report(step[1])
        except BaseException:
            process.kill()
            raise
    return process.returncode, list(last)


# Seconds for a billion weights on two cores. Weights that are not rounded take at most as long as those of 8 bits.
_SECONDS = {"int4": 200.0, "int8": 100.0}
# Bytes of memory that a build takes for each weight of the model, and those that PyTorch and the builder take always.
_MEMORY, _PROGRAMS = 7.0, 768 * 1024**2
# Bytes of a weight in the built model, with scales.
_BYTES = {"int4": 0.8, "int8": 1.15, "fp16": 2.0, "bf16": 2.0, "fp32": 4.0}


@dataclass(frozen=True)
class BuildCost:
    """The estimated cost of building a model: its number of weights, the time in seconds on two cores, the memory that
    the build needs, and the size of the built model. Sizes are in bytes.
    """

    weights: int
    seconds: float
    # The largest amount of memory that the build needs.
    memory: int
    # Size of the built model on disk.
    size: int


def cost_of(build: Build) -> BuildCost | None:
    """Return an estimate of the time, memory and disk space of a build with onnxruntime-genai's model builder.

    Returns None if the number of weights is unknown, and for kinds of builds that were not measured: encoders, GGUF
    files, mobius.
    """
    if build.is_encoder or build.uses_mobius or build.gguf is not None:
        return None
    weights = count_weights(read_source_config(build.source))
    if weights is None:
        return None
    seconds = _SECONDS.get(build.precision, _SECONDS["int8"]) * weights / 1e9
    return BuildCost(weights, seconds, int(_MEMORY * weights) + _PROGRAMS, int(_BYTES[build.precision] * weights))
