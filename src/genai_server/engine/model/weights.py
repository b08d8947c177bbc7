"""Stores a model's weights in the form that the kernels need ("packed"), so that all processes that run the model share
them: packed by ONNX Runtime (`prepacked_model`), or for genai-server-native (`native_model`, `packed_encoder`).

The kernels need weights in another order than ONNX files have. A session of ONNX Runtime usually packs them in private
memory. If packed weights were saved together with the optimized graph, the file is mapped into memory instead, and the
engines of a host share its pages (session options `session.save_external_prepacked_constant_initializers` and
`session.optimized_model_external_initializers_file_name`). The name of a folder with packed weights depends on the
model, the versions and the processor.
"""

import hashlib
import json
import logging
import shutil
import tempfile
from enum import Enum
from pathlib import Path

import onnx
import onnxruntime
from filelock import FileLock

from genai_server.engine.graph_rewriting.cpu_operators import use_fast_operators
from genai_server.engine.graph_rewriting.packed_products import why_not_packed, write_packed_model
from genai_server.engine.host import processor
from genai_server.engine.model.adapter_file import ADAPTER_SUFFIX
from genai_server.engine.model.files import CONFIG, external_files, named_files, read_config
from genai_server.engine.model.graph_reader import MTP
from genai_server.engine.model.session_options import EXTERNAL_DATA, config_entries, session_options
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions
from genai_server.options.providers import CPU
from genai_server.options.session import LEVEL

log = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
# The section of genai_config.json whose graph is meant if no other is named.
DECODER = "decoder"
_THREAD_OPTIONS = ("session.intra_op", "session.inter_op", "session.force_spinning_stop")
_ERRORS = 3  # ONNX Runtime's level of severity
_SAMPLES, _SAMPLE_BYTES = 64, 4096
# Part of a folder's name; another one for each change of what is written into it.
_FORMAT = 5


def prepacked_model(model_dir: Path, cache_dir: Path | None, options: DeviceOptions = DEFAULT_OPTIONS) -> Path:
    """Return a copy of the model directory in which ONNX Runtime has packed the decoder's weights for its kernels on
    this processor; `model_dir` itself if this is impossible.

    `options` has the session options on which the packed weights depend. The copy is stored below `cache_dir` at the
    first call, and used again at later starts. It is impossible if `cache_dir` is None or cannot be written, or with
    other providers than the CPU.
    """
    return _packed(model_dir, cache_dir, options, _Products.LIBRARY) or model_dir


def native_model(model_dir: Path, cache_dir: Path | None, options: DeviceOptions = DEFAULT_OPTIONS) -> Path:
    """Return a copy of the model directory in which operators of genai-server-native, this project's library for CPUs,
    compute the decoder's matrix products with packed weights.

    The copy is stored below `cache_dir` at the first call, and used again at later starts. Returns `model_dir` itself
    if some products cannot be replaced, or the copy cannot be stored.
    """
    path = model_dir / read_config(model_dir)["model"][DECODER]["filename"]
    if why := why_not_packed(onnx.load(str(path), load_external_data=False).graph):
        log.info("ONNX Runtime's operators multiply with the weights of %s: %s", path, why)
        return model_dir
    return _packed(model_dir, cache_dir, options, _Products.NATIVE) or model_dir


def packed_encoder(model_dir: Path, cache_dir: Path, options: DeviceOptions, part: str) -> Path | None:
    """Return the path of a copy of an encoder's graph, for images or audio, in which operators of genai-server-native
    compute the matrix products with packed weights. Weights of 16 and 32 bits are rounded to 8.

    `part` is the section of genai_config.json that names the encoder. The copy is stored below `cache_dir` at the first
    call, and used again at later starts. Returns None if some products cannot be replaced, or the copy cannot be
    stored.
    """
    name = str(read_config(model_dir)["model"][part]["filename"])
    if why := why_not_packed(onnx.load(str(model_dir / name), load_external_data=False).graph):
        log.info("the graph %s has the model's own weights: %s", name, why)
        return None
    packed = _packed(model_dir, cache_dir, options, _Products.ROUNDED, part)
    return None if packed is None else packed / name


class _Products(Enum):
    """Which library computes the matrix products of a graph with packed weights, and whether weights are rounded."""

    # ONNX Runtime, with the weights that its kernels pack.
    LIBRARY = ""
    NATIVE = "native"
    # The same, with weights in 16 and 32 bits rounded to 8.
    ROUNDED = "rounded"


def _packed(
    model_dir: Path, cache_dir: Path | None, options: DeviceOptions, products: _Products, part: str = DECODER
) -> Path | None:
    """Return a copy of the model directory with packed weights of the graph that the section `part` of
    genai_config.json names; None if this is impossible. `products` says for which library the weights are packed.

    The copy is created below `cache_dir` if it does not exist there or is damaged. It is impossible if `cache_dir` is
    None or cannot be written, or the options have other providers than the CPU or libraries of custom operators.
    """
    has_others = any(provider.name != CPU for provider in options.providers)
    if cache_dir is None or has_others or options.custom_op_libraries:
        return None
    what_else = {"matrices": products.value, "part": part, "format": str(_FORMAT)}
    try:
        target = cache_dir / model_key(model_dir, options, what_else)
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(str(target) + ".lock"):
            if not _is_whole(target):
                shutil.rmtree(target, ignore_errors=True)
                _write(model_dir, target, options, products, part)
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        log.warning("packed weights are not kept, because they cannot be stored in %s: %s", cache_dir, error)
        return None
    return target


def _write(model_dir: Path, target: Path, device_options: DeviceOptions, products: _Products, part: str) -> None:
    """Create the folder `target` with a copy of the model in which the graph of the section `part` has packed weights.
    The copy is made in another folder next to `target`, which is renamed when it is complete. `products` says for which
    library the weights are packed.

    Raises OSError, DoesNotFit, and ONNX Runtime's own errors.
    """
    config = read_config(model_dir)
    graph = str(config["model"][part]["filename"])
    log.info("packing the weights of %s once, into %s", model_dir / graph, target)
    # A head for multi-token prediction is read from the model directory.
    head = config["model"].pop(MTP, None) or {}
    left_out = {model_dir / CONFIG, *_with_weights(model_dir, graph), *_with_weights(model_dir, head.get("filename"))}
    prefix = f".making-{target.name}-"
    for leftover in target.parent.iterdir():
        if leftover.name.startswith(prefix):  # left by a killed process, since this one holds the lock
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as making:
        fresh = Path(making) / "model"
        fresh.mkdir()
        if part == DECODER:  # of another part, only the graph is used
            for file in _files(model_dir):
                if file not in left_out:
                    copy = fresh / file.relative_to(model_dir)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, copy)
            (fresh / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        packed = fresh / graph
        packed.parent.mkdir(parents=True, exist_ok=True)
        if products is _Products.LIBRARY:
            _optimize(model_dir / graph, packed, device_options)
        else:
            write_packed_model(model_dir / graph, packed, rounds_floats=products is _Products.ROUNDED)
        (fresh / _MANIFEST).write_text(json.dumps(_fingerprints(fresh)), encoding="utf-8")
        fresh.replace(target)


def _with_weights(model_dir: Path, graph: str | None) -> set[Path]:
    """Return the path of the graph named `graph` in a model directory, and the paths of the files with its weights; an
    empty set if `graph` is None or empty.
    """
    if not graph:
        return set()
    path = model_dir / graph
    return {path, *(path.parent / name for name in external_files(path))}


def _optimize(source: Path, target: Path, device_options: DeviceOptions) -> None:
    """Let ONNX Runtime optimize the graph at `source` for this processor and pack its weights, and write the result to
    `target`, with the weights in a file next to it.
    """
    options = session_options(device_options, 0)
    options.log_severity_level = _ERRORS  # it would warn that the graph is for this processor only, which is intended
    options.optimized_model_filepath = str(target)
    for name, value in (
        ("session.optimized_model_external_initializers_file_name", f"{target.name}.data"),
        ("session.optimized_model_external_initializers_min_size_in_bytes", "1024"),
        ("session.save_external_prepacked_constant_initializers", "1"),
        (EXTERNAL_DATA, str(source.parent)),
    ):
        options.add_session_config_entry(name, value)
    model = onnx.load(str(source), load_external_data=False)
    use_fast_operators(model.graph)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _is_whole(target: Path) -> bool:
    """Whether a folder with packed weights is complete and undamaged. The sizes of its files and samples of their
    contents are compared with those that were recorded when it was written.
    """
    try:
        written = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
        return bool(written == _fingerprints(target))
    except (OSError, ValueError):
        return False


def _fingerprints(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != _MANIFEST)
    return {file.relative_to(folder).as_posix(): _fingerprint(file) for file in files}


def _fingerprint(file: Path) -> str:
    """Return a hash, in hexadecimal, of a file's size and of samples of its contents. Hashing the whole file would take
    as long as loading it.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for sample in range(_SAMPLES):
            stream.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def model_key(model_dir: Path, options: DeviceOptions, what_else: dict[str, str]) -> str:
    """Return the name of the folder for a model's packed weights. It has a hash of everything on which the weights
    depend: the model's files, the processor, the version of ONNX Runtime, the session options, and the values in
    `what_else`.
    """
    files = {
        file.relative_to(model_dir).as_posix(): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in _files(model_dir)
    }
    parts = [str(model_dir.resolve()), files, onnxruntime.__version__, processor(), _packing(options) | what_else]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{model_dir.resolve().name}-{digest[:16]}"


def _files(model_dir: Path) -> list[Path]:
    """Return the paths of a model's files: those directly in the model directory, and those in the folders of files
    that genai_config.json names. LoRA adapters are left out, which may be in the same directory and change.
    """
    named = [Path(name) for name in named_files(read_config(model_dir))]
    folders = {model_dir, *(model_dir / path.parent for path in named if ".." not in path.parts)}
    files = (file for folder in folders for file in folder.iterdir())
    return sorted(file for file in files if file.is_file() and file.suffix != ADAPTER_SUFFIX)


def _packing(options: DeviceOptions) -> dict[str, str]:
    """Return the session options, by name, on which ONNX Runtime's packed weights depend: all options but those for
    threads and memory.
    """
    level = {LEVEL: options.session[LEVEL]} if LEVEL in options.session else {}
    return level | {
        name: value for name, value in config_entries(options, 0).items() if not name.startswith(_THREAD_OPTIONS)
    }
