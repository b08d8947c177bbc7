"""Loads an engine's model (`load_model`), and chooses the runners that run it by the settings, the device and the
model's graph. Sequences run in a batch if the graph can run in one, and otherwise one by one with onnxruntime-genai.

Modules that import ONNX Runtime are imported within functions, because the scripted device, which simulates a model for
tests, works without ONNX Runtime.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from genai_server.engine.encoded_inputs import EncodedAudio
from genai_server.engine.encoder_worker import AudioWorker, EncoderWorker, ImageWorker, Tensors
from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.model.adapter_file import adapter_inputs
from genai_server.engine.model.files import (
    check_draft_model,
    check_model_directory,
    session_profile,
    unsupported_media_message,
)
from genai_server.engine.model.graph_reader import MTP, read_cross_decoder, read_decoder_graph
from genai_server.engine.profiling.profile_files import profile_folder
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.runner_rules import check_reach, check_runner, never_batched
from genai_server.engine.runners.scripted import ScriptedPooledRunner, ScriptedRunner
from genai_server.engine.runners.sequence_limits import (
    allowed,
    batch_limits,
    draft_share,
    generator_limits,
    head_share,
    longest_text,
    on_cpu,
    with_cache_type,
    with_kv_share,
    with_limit,
)
from genai_server.errors import ConfigurationError, RunnerFailed, in_one_line
from genai_server.messages.generation_request import ModelInfo
from genai_server.messages.launch import EngineSpec
from genai_server.model_files.config_files import read_mask_token
from genai_server.model_files.pooling_model import Task, read_pooling_model, task_of
from genai_server.options.device import on_providers, reaching, without_spinning_between_passes
from genai_server.options.providers import is_scripted
from genai_server.options.table import Reach

if TYPE_CHECKING:
    from genai_server.engine.runners.batched import BatchedRunner
    from genai_server.engine.runners.draft_model import DraftModel
    from genai_server.engine.runners.og_generator import OgGeneratorRunner

log = logging.getLogger(__name__)
# Waiting requests whose audio is encoded, besides the running ones.
_ENCODED_AHEAD = 2
_NO_PROFILE_OF_PARTS = (
    "a model for speech cannot be profiled by requests where onnxruntime-genai runs it: the library cannot switch a "
    "profile of its decoder on and off"
)


def load_batched(spec: EngineSpec, model_dir: Path, model: ModelInfo) -> "BatchedRunner":
    """Load the model in `model_dir` so that its sequences run in a batch, and return the runner. On CPUs, the weights
    are packed for the kernels first, which takes longer at the first start.

    Raises DoesNotFit if the settings rule out a batch, or the model cannot run in one; the model may then run without a
    batch. Raises ConfigurationError if GENAI_KV_CACHE_BYTES is too small for a single request, because running without
    a batch would not respect that limit.
    """
    from genai_server.engine.model.native_library import multiplies_bf16, why_not_native
    from genai_server.engine.model.weights import native_model

    why = never_batched(spec.device, spec)
    if why is not None:
        raise DoesNotFit(why)
    is_speech_model = task_of(model_dir) is Task.TRANSCRIBE
    if on_cpu(spec):
        if (why := why_not_native(spec.options, cache_dir(spec))) is not None:
            raise DoesNotFit(why)
        if spec.attention_type == "bf16" and not multiplies_bf16(cache_dir(spec)):
            log.warning("GENAI_ATTENTION_TYPE=bf16 has no effect: this processor cannot multiply bfloat16 numbers")
        model_dir = native_model(model_dir, cache_dir(spec), spec.options)
    graph = read_cross_decoder(model_dir) if is_speech_model else read_decoder_graph(model_dir)
    if on_cpu(spec):
        graph = graph.in_32_bits()
    if graph.bytes_per_row and not on_cpu(spec):
        raise DoesNotFit("its layers have states of fixed size, which a batch keeps in the memory of a CPU only")
    return _load(spec, graph, model)


def cache_dir(spec: EngineSpec) -> Path | None:
    """Return the folder in which an engine stores packed weights; None if the settings do not name one, so that they
    are not stored.

    An engine that is bound to a NUMA node has a folder of its own, because the memory of a mapped file is on one node.
    """
    if not spec.cache_dir:
        return None
    node = None if spec.cores is None else spec.cores.node
    return Path(spec.cache_dir) if node is None else Path(spec.cache_dir) / f"node-{node}"


def _load(spec: EngineSpec, graph: DecoderGraph, model: ModelInfo) -> "BatchedRunner":
    """Open an ONNX Runtime session for `graph`, allocate the KV cache, and return the runner of the batch.

    Raises DoesNotFit if the graph cannot be loaded or run in a batch, and ConfigurationError if a setting is wrong, for
    instance GENAI_KV_CACHE_BYTES too small.
    """
    from genai_server.engine.kv_cache.buffers import buffers_on
    from genai_server.engine.model.session import open_session
    from genai_server.engine.runners.batched import BatchedRunner
    from genai_server.engine.runners.gpu_kv_cache_size import with_memory_left

    graph = with_cache_type(spec, graph, model.context_length)
    if on_cpu(spec):
        limits, model = batch_limits(spec, graph, model)
    prefix = session_profile_prefix(spec)
    try:
        session = open_session(
            graph,
            spec.threads,
            offers_best=not on_cpu(spec),
            options=spec.options,
            profile_prefix=f"{prefix}_batch" if prefix else "",
        )
    except (ConfigurationError, DoesNotFit):
        raise
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise DoesNotFit(f"its graph for a batch cannot be loaded: {in_one_line(error)}") from error
    try:
        if not on_cpu(spec):
            spec = with_memory_left(spec, graph, session, model)
            limits, model = batch_limits(spec, graph, model)
        runner = BatchedRunner(
            graph,
            session,
            model,
            limits,
            rounds_prefixes=_rounds_prefixes(spec, graph),
            run_entries=spec.options.run,
            make_buffers=buffers_on(spec.device, spec.options, limits.num_slots + limits.memory.num_pages),
        )
    except RunnerFailed as error:
        raise DoesNotFit(f"its first pass in a batch failed: {error.message}") from error
    if spec.exact and (why := runner.abilities.why_not_exact):
        raise DoesNotFit(f"GENAI_EXACT is true, and in a batch {why}")
    check_reach(spec.device, spec.options, Reach.BATCHED, "requests run in a batch")
    log_nodes(runner)
    return runner


def _rounds_prefixes(spec: EngineSpec, graph: DecoderGraph) -> bool:
    """Whether the prefix cache on disk stores keys and values of `graph` with 16 bits, although they have 32 bits in
    memory, so that reading them back changes results slightly.
    """
    if spec.prefix_cache_bytes == "0":
        return False
    return spec.prefix_cache_type == "fp16" and graph.cache_type == np.float32


def log_nodes(runner: Runner) -> None:
    """Write to the log how many nodes of the model's graph each execution provider runs."""
    counts = (f"{count} on {name}" for name, count in runner.nodes.items())
    log.info("nodes of the graph: %s", ", ".join(counts))


def session_profile_prefix(spec: EngineSpec) -> str:
    """Return the path prefix of the files into which ONNX Runtime profiles the whole session of an engine's model, from
    loading to closing; "" if the model's genai_config.json does not ask for this.

    The beginning of the file name comes from genai_config.json, and the folder from the settings. Raises Unavailable if
    the folder cannot be written.
    """
    name = session_profile(Path(spec.model_dir))
    if not name:
        return ""
    folder = profile_folder(spec)
    folder.prepare()
    return folder.path_prefix(name)


def load_model(spec: EngineSpec) -> LoadedModel:
    """Load everything that an engine needs to run its model: the runners, the encoder for images or audio, and a draft
    model or the model's head for multi-token prediction, if drafts are possible. An engine calls this once when it
    starts.

    Raises ConfigurationError and ModelDirectoryError; errors of ONNX Runtime and onnxruntime-genai are raised
    unchanged.
    """
    share = head_share(spec)
    # As far as the settings tell; the graph may rule drafts out.
    may_draft = bool(spec.draft_model or share) and on_cpu(spec) and task_of(Path(spec.model_dir)) is Task.GENERATE
    may_draft = may_draft and never_batched(spec.device, spec) is None
    if may_draft:
        spec = structs.replace(spec, options=without_spinning_between_passes(spec.options))
    kv_bytes = allowed(spec).bytes if share else 0
    main_spec = spec if may_draft else structs.replace(spec, draft_model="")
    loaded = _load_runners(with_kv_share(spec, 1 - share) if share else main_spec)
    if spec.draft_model and may_draft and loaded.main.abilities.drafts:
        loaded.draft_model = _load_draft_model(spec, loaded)
    elif spec.draft_model:
        reason = loaded.batching.reason or "draft models run on CPUs only, next to a model that generates text"
        log.warning("draft_model=%s has no effect on device %s: %s", spec.draft_model, spec.device, reason)
    elif share:
        loaded.draft_model = _load_head(spec, share, loaded)
        if loaded.draft_model is None:
            loaded.resize(kv_bytes)
    return loaded


def _load_runners(spec: EngineSpec) -> LoadedModel:
    if is_scripted(spec.device):
        if (pooling := read_pooling_model(Path(spec.model_dir))) is not None:
            pooled = ScriptedPooledRunner(pooling)
            pooled.model = with_limit(pooled.model, spec.max_length)
            return LoadedModel(pooled, reason="it is scripted")
        scripted = ScriptedRunner(max(4096, spec.max_length))
        scripted.model = with_limit(scripted.model, spec.max_length)
        return LoadedModel(scripted, reason="it is scripted")
    from genai_server.engine.model.session_options import preload_cuda, use_global_pool, with_found_libraries

    for warning in spec.options.warnings:
        log.warning("%s", warning)
    model_dir = Path(spec.model_dir)
    check_runner(spec.device, model_dir, spec, spec.options)
    spec = structs.replace(spec, options=with_found_libraries(spec.options, model_dir))
    use_global_pool(spec.options, spec.threads)
    preload_cuda(on_providers(spec.options, spec.device))
    if task_of(model_dir).pools:
        return _pooled(spec, model_dir)
    if task_of(model_dir) is Task.TRANSCRIBE:
        return _transcribing(spec, model_dir)
    if left_out := unsupported_media_message(model_dir):
        log.info("the model in %s %s", spec.model_dir, left_out)
    return _batched(spec, model_dir, _image_worker(spec, model_dir))


def _batched(spec: EngineSpec, model_dir: Path, encoder: ImageWorker | None) -> LoadedModel:
    """Load a model that generates text, and return it with its runners. Its sequences run in a batch or, if its graph
    cannot run in a batch, one by one with onnxruntime-genai. A second runner is loaded for LoRA adapters if the batch
    takes none.

    `encoder` encodes images or audio; None if the model reads only text. Raises ConfigurationError if the settings
    cannot be fulfilled.
    """
    model = check_model_directory(model_dir)
    has_adapters = bool(adapter_inputs(model_dir))
    # A batch on a device takes the memory that is left, and no adapters.
    generator = _generator(spec, model_dir) if has_adapters and not on_cpu(spec) else None
    try:
        batched = load_batched(spec, model_dir, model)
    except DoesNotFit as error:
        reason = str(error)
    else:
        if has_adapters and not batched.abilities.adapters:
            generator = generator or _generator(spec, model_dir)
        return LoadedModel(generator or batched, batched, encoder=encoder)
    # Only here, because the error keeps the weights of the failed batch until it is handled.
    return _one_by_one(structs.replace(spec, draft_model=""), generator or _generator(spec, model_dir), reason, encoder)


def _load_draft_model(spec: EngineSpec, loaded: LoadedModel) -> "DraftModel":
    """Load the draft model for speculative decoding that the settings name. It drafts tokens for the sequences in the
    batch of `loaded`, the model that has been loaded before.

    Raises ConfigurationError if the draft model cannot run in a batch or has other tokens than the model.
    """
    path, main = Path(spec.draft_model), loaded.main
    from genai_server.engine.model.session_options import with_found_libraries
    from genai_server.engine.runners.draft_model import DraftModel

    try:
        model = check_draft_model(Path(spec.model_dir), path)
    except ConfigurationError as error:
        raise ConfigurationError(f"draft_model={error.message}") from None
    # It never reads longer sequences.
    model = structs.replace(model, context_length=min(model.context_length, main.model.max_length))
    share, options = draft_share(spec), with_found_libraries(spec.options, path)
    draft_spec = structs.replace(
        with_kv_share(spec, share),
        model_dir=spec.draft_model,
        draft_model="",
        options=options,
        exact=False,  # how it rounds changes how many drafts are accepted, and no answer
    )
    try:
        runner = load_batched(draft_spec, path, model)
        if runner.slots.keeps_states:
            raise DoesNotFit("its layers have states of fixed size, from which rejected tokens cannot be removed")
    except DoesNotFit as reason:
        raise ConfigurationError(f"draft_model={path}: it cannot draft: {reason}") from None
    mask_token = read_mask_token(path, model.vocab_size)
    log.info(
        "the model in %s drafts the next tokens%s", path, "" if mask_token is None else ", in one pass for each draft"
    )
    name = path.absolute().name
    return DraftModel(runner, main.model.vocab_size, mask_token=mask_token, name=name, kv_share=share)


def _load_head(spec: EngineSpec, share: float, loaded: LoadedModel) -> "DraftModel | None":
    """Load the model's head for multi-token prediction, a layer that drafts tokens for the sequences in the batch of
    `loaded`. It gets the part `share`, from 0 to 1, of the memory for KV caches.

    Returns None, and logs a warning, if the head cannot be used, because the model answers without it, too.
    """
    from genai_server.engine.model.session import open_session
    from genai_server.engine.model.session_options import with_found_libraries
    from genai_server.engine.runners.batched import BatchedRunner
    from genai_server.engine.runners.draft_model import HeadRunner, MtpHead

    main, model_dir = loaded.main, Path(spec.model_dir)
    try:
        if not isinstance(main, BatchedRunner) or not main.abilities.drafts or not main.graph.hidden_size:
            raise DoesNotFit(loaded.batching.reason or "the model's graph does not give it what it reads")
        head_spec = with_kv_share(spec, share)
        graph = with_cache_type(head_spec, read_decoder_graph(model_dir, MTP).in_32_bits(), main.model.context_length)
        limits, model = batch_limits(head_spec, graph, main.model)
        options = with_found_libraries(spec.options, model_dir)
        session = open_session(graph, spec.threads, options=options)
        runner = HeadRunner(graph, session, model, limits, run_entries=spec.options.run)
    except Exception as error:  # ONNX Runtime's errors have no base of their own; answers need no drafts
        log.warning("the model's head for multi-token prediction is not used: %s", in_one_line(error))
        return None
    log.info("the model's head for multi-token prediction drafts the next tokens")
    return MtpHead(runner, main, name=graph.path.name, kv_share=share)


def _generator(spec: EngineSpec, model_dir: Path) -> "OgGeneratorRunner":
    from genai_server.engine.model.weights import prepacked_model
    from genai_server.engine.runners.og_generator import OgGeneratorRunner

    if on_cpu(spec) and task_of(model_dir) is Task.GENERATE:
        model_dir = prepacked_model(model_dir, cache_dir(spec), spec.options)
    profile_prefix = session_profile_prefix(spec)
    return OgGeneratorRunner(model_dir, spec.device, spec.threads, spec.options, profile_prefix=profile_prefix)


def _one_by_one(
    spec: EngineSpec, generator: "OgGeneratorRunner", reason: str, encoder: EncoderWorker[Any] | None
) -> LoadedModel:
    """Return a loaded model whose sequences all run without a batch, on the runner `generator`, which has an
    `og.Generator` of onnxruntime-genai for each.

    `reason` says why there is no batch, for the log and error messages, and `encoder` encodes images or audio. Raises
    ConfigurationError if the settings require a batch, or an option of the device has no effect without one.
    """
    if spec.scheduler == "batched":
        raise ConfigurationError(f"GENAI_SCHEDULER=batched: {reason}")
    check_reach(spec.device, spec.options, Reach.GENERATOR, reason)
    if on_cpu(spec) and spec.kv_cache_type == "int8":
        log.warning("GENAI_KV_CACHE_TYPE=int8 has no effect: requests run one by one, not in a batch")
    log.info("device %s runs requests one by one, not in a batch: %s", spec.device, reason)
    log.info("the graph is on %s, each taking what the one before it leaves", ", ".join(generator.nodes))
    memory, generator.model = generator_limits(spec, generator.model_dir, generator.model)
    generator.abilities = replace(generator.abilities, memory=memory)
    return LoadedModel(generator, reason=reason, encoder=encoder)


def _transcribing(spec: EngineSpec, model_dir: Path) -> LoadedModel:
    """Load a speech recognition model with its audio encoder. Its sequences run in a batch or, if its graph cannot run
    in a batch, one by one with onnxruntime-genai.
    """
    from genai_server.engine.model.aligner import Aligner, why_no_times
    from genai_server.engine.model.encoders import unencoded

    model = check_model_directory(model_dir)
    max_bytes, max_ahead = spec.encoder_cache_bytes, spec.max_batch_size + _ENCODED_AHEAD
    try:
        batched = load_batched(spec, model_dir, model)
    except DoesNotFit as reason:
        worker = AudioWorker(lambda: unencoded, max_bytes, max_ahead)
        loaded = _one_by_one(spec, _generator(spec, model_dir), str(reason), worker)
        return replace(loaded, why_no_profile=_NO_PROFILE_OF_PARTS)
    if refusal := why_no_times(model_dir):
        log.info("times of words are refused: %s", refusal)
    options = reaching(spec.options, Reach.BATCHED)
    open_aligner = None if refusal else lambda: Aligner(model_dir, spec.threads, options).times
    batched.model = structs.replace(batched.model, aligns=not refusal)
    worker = AudioWorker(lambda: _audio_encoder(spec, model_dir), max_bytes, max_ahead, open_aligner)
    return LoadedModel(batched, batched, encoder=worker)


def _audio_encoder(spec: EngineSpec, model_dir: Path) -> Callable[[Tensors], EncodedAudio]:
    from genai_server.engine.model.encoders import AudioEncoder
    from genai_server.engine.model.graph_reader import read_encoder_files

    files = read_encoder_files(model_dir)
    options = reaching(spec.options, Reach.BATCHED)
    return AudioEncoder(files, spec.threads, options, _packed_encoder(spec, "encoder")).encode


def _packed_encoder(spec: EngineSpec, part: str) -> Path | None:
    """Return the path of an encoder's graph in which genai-server-native computes the matrix products with weights of 8
    bits; None if the model's original graph is to be used.

    It is created at the first call. `part` is the section of genai_config.json for the encoder. The original graph is
    used on GPUs, on processors without VNNI instructions, and if the settings ask for it.
    """
    from genai_server.engine.host import has_vnni
    from genai_server.engine.model.native_library import why_not_native
    from genai_server.engine.model.weights import packed_encoder

    directory = cache_dir(spec)
    if not on_cpu(spec) or spec.encoder_weights == "own" or directory is None or not has_vnni():
        return None
    if (why := why_not_native(spec.options, directory)) is not None:
        log.info("the encoder has the model's own weights: %s", why)
        return None
    return packed_encoder(Path(spec.model_dir), directory, spec.options, part)


def _image_worker(spec: EngineSpec, model_dir: Path) -> ImageWorker | None:
    """Return the worker, with a thread of its own, that encodes images or audio in chats; None for a model that reads
    only text.
    """
    from genai_server.engine.model.encoders import ImageEncoder
    from genai_server.engine.model.graph_reader import read_vision_files

    files = read_vision_files(model_dir)
    if files is None:
        return None
    options = reaching(spec.options, Reach.BATCHED)

    def open_encoder() -> Callable[[Tensors], Any]:
        return ImageEncoder(files, spec.threads, options, _packed_encoder(spec, files.part)).encode

    return ImageWorker(open_encoder, files.image_token, spec.encoder_cache_bytes, has_audio=files.has_audio)


def _pooled(spec: EngineSpec, model_dir: Path) -> LoadedModel:
    from genai_server.engine.runners.pooled import PooledRunner

    runner = PooledRunner(
        model_dir,
        spec.threads,
        reaching(on_providers(spec.options, spec.device), Reach.BATCHED),
        profile_prefix=session_profile_prefix(spec),
    )
    pooling = read_pooling_model(model_dir)
    runner.model = longest_text(spec, runner.model, 0 if pooling is None else pooling.num_heads)
    log_nodes(runner)
    runner.warm_up()
    return LoadedModel(runner, reason="it gives vectors or scores of complete texts")
