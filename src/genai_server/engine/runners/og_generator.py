"""The runner that uses onnxruntime-genai's own generation loop: one `og.Generator` for each sequence, so one sequence
in a pass. It runs models, devices and adapters that the batch cannot run.

It raises the project's own errors in place of those of onnxruntime-genai.
"""

import ctypes
import importlib.util
import json
from collections import abc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from genai_server.engine.abilities import Abilities
from genai_server.engine.graph_description import VisionFiles
from genai_server.engine.model.adapter_file import adapter_inputs, check_adapter_file, private_copy
from genai_server.engine.model.encoders import features_graph
from genai_server.engine.model.files import check_model_directory, read_config
from genai_server.engine.model.graph_reader import read_vision_files, rope_switch
from genai_server.engine.model.session_options import (
    configure_providers,
    genai_overlay,
    how_to_get,
    missing_device,
    newer_directml,
    preload_cuda,
)
from genai_server.engine.runners.base import Runner, Terminated
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed, ConfigurationError, RunnerFailed
from genai_server.model_files.speech_and_vision import FEATURES, transcribes
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions, on_providers, reaching
from genai_server.options.providers import CPU
from genai_server.options.session import LIBRARIES
from genai_server.options.table import Reach

_TERMINATED_MESSAGE = "Session in Terminated state"
# Advice by words in the library's error when it cannot load a model.
_REMEDIES = {
    "is not a registered function/op": f"[session] {LIBRARIES} names the file that has such operators",
    "custom_ops_library path is not within": "it must lie in the model directory or below the working directory",
}
# The providers that the library lacks, by words in its error.
_LACKING = {
    "libonnxruntime-genai-cuda": "cuda",
    "onnxruntime-genai-cuda.dll": "cuda",
    "DML provider requested": "directml",
    "OpenVINO execution provider is not supported": "openvino",
}
# The name of the adapter in an `og.Adapters`, which contains only this one.
_ADAPTER = "adapter"
_TRIED_TOKENS = 2
# Number of tokens of the chunks in which the prompt of a request with `exact` is read.
_EXACT_CHUNK = 64
# No token has this id.
_NO_PADDING = -1


class OgGeneratorRunner(Runner):
    """Runs the sequences of a model one by one with onnxruntime-genai. The constructor loads the model from its
    directory, which may take long and may hold the GIL meanwhile.

    Those of the `options` of the device that have no effect on an `og.Generator` are ignored. If they name no execution
    provider, the device's own one is used. `threads` is the number of threads, 0 for the usable physical cores. With a
    `profile_prefix`, ONNX Runtime profiles the whole session into files whose paths begin with it.

    The constructor raises ModelDirectoryError, ConfigurationError, ImportError if onnxruntime-genai is not installed,
    and RuntimeError with that library's message.
    """

    def __init__(
        self,
        model_dir: Path,
        device: str,
        threads: int,
        options: DeviceOptions = DEFAULT_OPTIONS,
        *,
        profile_prefix: str = "",
    ) -> None:
        self._options = reaching(on_providers(options, device), Reach.GENERATOR)
        preload_cuda(self._options)
        _load_own_runtime()
        import onnxruntime_genai

        self.library: Any = onnxruntime_genai
        self.model = check_model_directory(model_dir)
        self.model_dir = model_dir
        self._vision = read_vision_files(model_dir)
        # The features that a model for speech reads where a sequence has no audio, [1, mels, frames].
        self._silence = _silence(model_dir) if transcribes(model_dir) else None
        # onnxruntime-genai does not apply adapters to the decoder of a model that takes images, and reports no error.
        self.abilities = Abilities("generator", adapters=self._vision is None)
        with _advised(self._options):
            self.library_model: Any = self.library.Model(self._configure(model_dir, threads, profile_prefix))
        decoder = read_config(model_dir)["model"]["decoder"]
        self._logits = decoder.get("outputs", {}).get("logits", "logits")
        # A cache of a layer with a window holds all of it, however short the sequence is.
        window = int((decoder.get("sliding_window") or {}).get("window_size", 0))
        self._min_length = min(window, self.model.context_length)
        self.switches_at = rope_switch(model_dir)
        self._generators: dict[int, Any] = {}

    def load_adapter(self, path: Path) -> Any:
        """Load the LoRA adapter file at `path` into an `og.Adapters` of onnxruntime-genai, and return this object. The
        adapter stays in memory as long as the object is referenced.

        A short prompt is read with the adapter, because only the graph shows whether all weights match. Raises
        AdapterLoadFailed if the file does not match the model, or the model takes images, for which onnxruntime-genai
        has no adapters.
        """
        check_adapter_file(path, adapter_inputs(self.model_dir))
        if not self.abilities.adapters:
            raise AdapterLoadFailed("onnxruntime-genai has no adapters for models that take images")
        try:
            adapters = self.library.Adapters(self.library_model)
            with private_copy(path) as copy:
                adapters.load(str(copy), _ADAPTER)
            trial = self._generator(2 * _TRIED_TOKENS, adapters)
            trial.append_tokens(np.ones(_TRIED_TOKENS, np.int32))
        except RuntimeError as error:
            raise AdapterLoadFailed(f"{path} cannot be used with this model: {error}") from None
        return adapters

    @property
    def nodes(self) -> Mapping[str, int | None]:
        """The names of the execution providers in order, each with None, because onnxruntime-genai does not report how
        many nodes of the graph each one runs.
        """
        return dict.fromkeys([*(provider.name for provider in self._options.providers), CPU])

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        """Return how many unread tokens of a sequence the next pass should read, if there is room for `maximum` tokens.

        For a request with `exact`, which asks for bitwise reproducible answers, the prompt is always divided at the
        same tokens, whatever `maximum` is. After a preemption, each token of its answer is read again in a pass of its
        own, as when it was generated.
        """
        num_left = len(sequence.prompt) - sequence.num_read
        has_inputs = sequence.images is not None or sequence.audio is not None
        if not sequence.request.exact:
            return super().fit_chunk(sequence, maximum)
        if num_left <= 0:
            return 1
        if has_inputs or self.is_long(sequence):
            return min(num_left, super().fit_chunk(sequence, maximum))
        return min(num_left, _EXACT_CHUNK - sequence.num_read % _EXACT_CHUNK)

    def open(self, sequence: Sequence) -> int:
        with self._translated():
            self._generators[sequence.id] = self._generator(sequence.max_length, self._adapter(sequence))
        return 0

    def _generator(self, max_length: int, adapter: Any) -> Any:
        parameters = self.library.GeneratorParams(self.library_model)
        length = max(max_length, self._min_length)
        # The engine's own sampler chooses tokens, so the library's should do as little as possible.
        parameters.set_search_options(max_length=length, batch_size=1, num_beams=1, do_sample=False)
        generator = self.library.Generator(self.library_model, parameters)
        if adapter is not None:
            generator.set_active_adapter(adapter, _ADAPTER)
        return generator

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        (chunk,) = chunks
        generator = self._generators[chunk.sequence.id]
        with self._translated():
            if self._vision is not None and not chunk.sequence.num_read:
                generator.set_inputs(self._with_images(chunk, self._vision))
            elif self._silence is not None and not chunk.sequence.num_read:
                generator.set_inputs(self._with_audio(chunk, self._silence))
            else:
                generator.append_tokens(np.array(chunk.model_tokens, np.int32))
            if chunk.positions:
                return [Scores(self._positions(generator, chunk.num_tokens))]
            logits: Logits = generator.get_logits()
        logits = logits.reshape(-1, logits.shape[-1])[-1:]
        if self._vision is not None:
            logits[:, self._vision.image_token] = -np.inf
        return [Scores(logits)]

    def _with_images(self, chunk: ScheduledChunk, vision: VisionFiles) -> Any:
        """Return onnxruntime-genai's inputs for a chunk of a prompt whose images or audio the engine has encoded
        already. `vision` describes the graphs for them.
        """
        images = chunk.sequence.images
        features = None if images is None else images.features(chunk.tokens)
        if features is None:
            features = np.zeros((0, vision.hidden_size))
        inputs = self.library.NamedTensors()
        inputs["input_ids"] = np.array([chunk.model_tokens], np.int32)
        if vision.has_audio:
            if len(features):
                inputs["audio_embeds"] = features[np.newaxis].astype(np.float32)
                inputs["audio_lengths"] = inputs["audio_sizes"] = np.array([len(features)], np.int64)
            return inputs
        inputs["pixel_values"] = features[np.newaxis].astype(np.float32)
        inputs["num_image_tokens"] = np.array([len(features)], np.int64)
        if images is not None and images.grids:
            # The library counts in patches.
            inputs["image_grid_thw"] = np.array(images.grids, np.int64) * [1, vision.merge_size, vision.merge_size]
        return inputs

    def _with_audio(self, chunk: ScheduledChunk, silence: NDArray[np.float32]) -> Any:
        """Return onnxruntime-genai's inputs for a prompt of a speech recognition model, whose audio onnxruntime-genai
        encodes itself.

        `silence` has the audio features that a sequence without audio gets, such as one of the warm-up.
        """
        audio = chunk.sequence.audio
        inputs = self.library.NamedTensors()
        inputs["input_ids"] = np.array([chunk.model_tokens], np.int32)
        inputs[FEATURES] = silence if audio is None else audio.features
        return inputs

    def _positions(self, generator: Any, num_tokens: int) -> Logits:
        logits: Logits = generator.get_output(self._logits)[0].astype(np.float32, copy=False)
        if len(logits) != num_tokens:
            raise RunnerFailed(f"the model's graph gives logits for {len(logits)} of {num_tokens} tokens of a prompt")
        return logits

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        with self._translated():
            self._generators[sequence].set_runtime_option(option, value)

    def close(self, sequence: int) -> None:
        self._generators.pop(sequence, None)

    def end_session(self) -> None:
        self._generators.clear()
        del self.library_model

    def _configure(self, model_dir: Path, threads: int, profile_prefix: str) -> Any:
        """Return a configuration of onnxruntime-genai for the model in `model_dir`. The device's execution providers
        and options replace those in genai_config.json.

        `threads` is the number of threads, 0 for the usable physical cores. With a `profile_prefix`, ONNX Runtime
        profiles the whole session into files whose paths begin with it.
        """
        config = self.library.Config(str(model_dir))
        decoder = genai_overlay(self._options, threads) | self._without_sliding_window(model_dir)
        if profile_prefix:
            decoder["session_options"]["enable_profiling"] = profile_prefix
        # The library would take each token of a prompt that equals it for padding, and attend to none of them.
        overlay = {"pad_token_id": _NO_PADDING, "decoder": decoder}
        config.overlay(json.dumps({"model": overlay}))
        configure_providers(self.library, config, self._options)
        if self._vision is not None:
            # The library keeps a pointer to it.
            self._features_graph = features_graph(self._vision)
            config.add_model_data(str(self._vision.vision.relative_to(model_dir)), self._features_graph)
        return config

    def _without_sliding_window(self, model_dir: Path) -> dict[str, Any]:
        """Return changes of the decoder's section in genai_config.json that disable a sliding window which no layer of
        the model has; empty if there is no such window.

        Version 0.18 of the model builder writes such a window for Mistral 7B v0.1 and Phi-3-mini-4k. onnxruntime-genai
        would limit all KV caches to it, and fail when a sequence becomes longer.
        """
        decoder = read_config(model_dir)["model"]["decoder"]
        window = decoder.get("sliding_window") or {}
        if window.get("layers") != [] or "cache_slack" not in window or window.get("slide_key_value_cache", True):
            return {}
        return {"sliding_window": window | {"cache_slack": self.model.context_length}}

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if _TERMINATED_MESSAGE in str(error):
                raise Terminated(str(error)) from None
            raise RunnerFailed(f"onnxruntime-genai: {error}") from error


def _silence(model_dir: Path) -> NDArray[np.float32]:
    """Return audio features of the value zero, [1, mels, frames], as input for the encoder of the speech recognition
    model in the directory `model_dir`.
    """
    encoder = read_config(model_dir)["model"]["encoder"]
    graph = onnx.load(str(model_dir / encoder["filename"]), load_external_data=False).graph
    return np.zeros([1, *(dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim[1:])], np.float32)


def _load_own_runtime() -> None:
    """Load the ONNX Runtime library of the package onnxruntime-genai-winml, which supports DirectML, if that package is
    installed.

    Otherwise onnxruntime-genai would load the library of the package onnxruntime, which does not support DirectML,
    unless an ONNX Runtime is loaded already.
    """
    spec = importlib.util.find_spec("onnxruntime_genai")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (library := Path(folder) / "onnxruntime.dll").is_file():
            ctypes.CDLL(str(library))


@contextmanager
def _advised(options: DeviceOptions) -> Iterator[None]:
    """Context manager around the loading of a model by onnxruntime-genai. If the library raises a RuntimeError with a
    known cause, it raises a ConfigurationError instead, which says what the operator can do.

    `options` are the options of the device. Other errors are raised unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        if missing := missing_device(options):
            raise ConfigurationError(f"{missing}; onnxruntime-genai says: {error}") from None
        for words, remedy in _REMEDIES.items():
            if words in str(error):
                raise ConfigurationError(f"{error}; {remedy}") from None
        for words, name in _LACKING.items():
            if words in str(error):
                raise ConfigurationError(f"{str(error).rstrip('. ')}{how_to_get(name)}") from None
        if advice := newer_directml():
            raise ConfigurationError(f"{str(error).rstrip('. ')}{advice}") from None
        raise
