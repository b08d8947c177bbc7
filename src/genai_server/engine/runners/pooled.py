"""The runner of models that return a vector (embedding) or a relevance score (reranking) for each text. It runs
encoders and decoders in a session of ONNX Runtime.

A text is read in a single pass, together with texts of similar lengths. A decoder's graph also has inputs and outputs
for a KV cache: the inputs are empty, and the outputs are not requested. The vectors of a text's tokens are combined to
one vector in the same way as in sentence-transformers (`pool`).
"""

import logging
from collections import abc
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from genai_server.engine.abilities import Abilities
from genai_server.engine.graph_rewriting.ragged import LAST_POSITIONS, read_last
from genai_server.engine.model.files import VECTORS, check_model_directory
from genai_server.engine.model.session_options import (
    EXTERNAL_DATA,
    NUMPY_TYPES,
    node_shares,
    open_with,
    session_options,
)
from genai_server.engine.runners.base import INTERRUPTED_MESSAGE, Interrupted, Runner
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, is_low_priority
from genai_server.engine.scores import Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import AdapterLoadFailed, ModelDirectoryError, RunnerFailed
from genai_server.messages.generation_request import PooledText
from genai_server.model_files.pooling_model import PoolingModel, Task, read_pooling_model
from genai_server.options.device import DeviceOptions

_LEAST = 1e-9


def pool(states: Logits, mask: NDArray[np.int64], modes: abc.Sequence[str]) -> Logits:
    """Return one vector for each row, [rows, modes * width], combined from the vectors of its tokens `states` [rows,
    tokens, width].

    `mask` [rows, tokens] is 1 for the tokens that count, which must be adjacent, and otherwise 0. `modes` are names of
    pooling modes in sentence-transformers, such as "cls" and "mean"; the results of several modes are concatenated.
    """
    return np.concatenate([_pooled(states, mask, mode) for mode in modes], axis=1)


def _pooled(states: Logits, mask: NDArray[np.int64], mode: str) -> Logits:
    rows = np.arange(len(states))
    vectors: Logits
    if mode == "cls":
        vectors = states[rows, mask.argmax(axis=1)]
    elif mode == "lasttoken":
        vectors = states[rows, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)]
    elif mode == "max":
        vectors = np.where(mask[..., np.newaxis] == 0, np.float32(-np.inf), states).max(axis=1)
    else:
        vectors = _mean(states, mask.astype(np.float32), mode)
    return vectors


def _mean(states: Logits, weights: Logits, mode: str) -> Logits:
    if mode == "weightedmean":
        weights = weights * np.arange(1, weights.shape[1] + 1, dtype=np.float32)
    total = np.matmul(weights[:, np.newaxis], states)[:, 0]
    count = np.maximum(weights.sum(axis=1, keepdims=True), _LEAST)
    return np.asarray(total / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count), np.float32)


def normalized(vectors: Logits) -> Logits:
    """Return a copy of the vectors [rows, width], each scaled to length 1. Vectors of zeros remain zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


log = logging.getLogger(__name__)
Ids = NDArray[np.int64]
# Names of outputs, by priority: a vector for each text, for each token, or the logits.
_STATES = ("token_embeddings", "last_hidden_state", "hidden_states")
_LOGITS = "logits"
_IDS, _MASK, _TYPES, _POSITIONS, _PAST = "input_ids", "attention_mask", "token_type_ids", "position_ids", "past_"
# Limit of tokens of a pass with its padding, unless it is of a single text: larger ones are not faster, and
# take more memory.
_PASS_TOKENS = 2048
# A text is in a pass with a shorter one if that is filled up by at most this share of it, or by so few tokens.
_FILLED, _FEW = 0.125, 8
_TRIED = (2, 7)
# On a CPU the fused operator takes twice the time of the two that it replaces (docs/evidence/benchmarks.md).
DISABLED_FUSIONS = {"optimization.disable_specified_optimizers": "SkipLayerNormFusion"}


class PooledRunner(Runner):
    """Runs a model for embeddings or reranking. The constructor loads it from the directory `model_dir`.

    `threads` is the number of threads, 0 for the usable physical cores, and `options` are those of the device. With a
    `profile_prefix`, ONNX Runtime profiles the whole session into files whose paths begin with it. The constructor
    raises ModelDirectoryError, ConfigurationError, and ONNX Runtime's own errors.
    """

    def __init__(self, model_dir: Path, threads: int, options: DeviceOptions, *, profile_prefix: str = "") -> None:
        import onnxruntime

        self._library: Any = onnxruntime
        self.model = check_model_directory(model_dir)
        model = read_pooling_model(model_dir)
        assert model is not None, "the engine has chosen this runner by the directory"
        self._pooling: PoolingModel = model
        self._session = _open(model_dir / model.graph, model, threads, options, profile_prefix)
        self._inputs = {value.name: value for value in self._session.get_inputs()}
        self._output = _output_of([value.name for value in self._session.get_outputs()], model, model_dir / model.graph)
        _check_inputs(self._inputs, model_dir / model.graph)
        # Where logits are of the last position only, that must be a row's own.
        self._fills = model.true_token is None or LAST_POSITIONS in self._inputs
        self._entries = dict(options.run)
        self.abilities = Abilities("pooled", pools=True, interrupts=True)

    @property
    def nodes(self) -> Mapping[str, int | None]:
        return node_shares(self._session)

    def open(self, sequence: Sequence) -> int:
        return sequence.num_pooled

    def close(self, sequence: int) -> None:
        """Do nothing, because nothing of a text stays in memory after its pass."""

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        """Read the texts in all chunks, in one or more passes. Returns the scores of each chunk, which have one vector,
        or one score, for each text of the chunk, in order. Raises Interrupted and RunnerFailed.
        """
        tokens = np.concatenate([np.array(chunk.tokens, np.int64) for chunk in chunks])
        texts = [text for chunk in chunks for text in chunk.texts]
        ends = np.cumsum([text.num_tokens for text in texts])
        by_text: dict[int, Logits] = {}
        options = self._run_options()
        if is_low_priority(chunks) or len(chunks) == 1:
            self._allow_interrupts(options)
        try:
            for batch in _batches(texts, are_filled=self._fills):
                ids = [tokens[ends[number] - texts[number].num_tokens : ends[number]] for number in batch]
                vectors = self._read(ids, [texts[number] for number in batch], options)
                by_text.update(zip(batch, vectors, strict=True))
        finally:
            self._interruptible = None
            self.cancel_interrupt()
        indices = iter(range(len(texts)))
        return [Scores(vectors=np.stack([by_text[next(indices)] for _ in chunk.texts])) for chunk in chunks]

    def warm_up(self) -> None:
        """Run the first passes before the engine is ready: read a short text alone, and then two texts together.

        Raises RunnerFailed if a pass fails, and ModelDirectoryError if the vectors do not have the length that the
        model's configuration says.
        """
        for lengths in (_TRIED[:1], _TRIED if self._fills else _TRIED[:1] * 2):
            texts = [PooledText(min(length, self._pooling.max_tokens)) for length in lengths]
            ids = [np.full(text.num_tokens, 1 % self._pooling.vocab_size, np.int64) for text in texts]
            vectors = self._read(ids, texts, self._run_options())
        expected = self._pooling.dimensions if self._pooling.task is Task.EMBED else 1
        if vectors.shape != (len(_TRIED), expected):
            raise ModelDirectoryError(
                f"the graph {self._pooling.graph} gives {vectors.shape[1]} numbers for a text, and the directory's "
                f"configuration says {expected}"
            )

    def load_adapter(self, path: Path) -> object:
        raise AdapterLoadFailed("a model for embeddings or reranking takes no adapters")

    def end_session(self) -> None:
        # The inputs keep the session alive, too.
        del self._session, self._inputs

    def _read(self, ids: abc.Sequence[Ids], texts: abc.Sequence[PooledText], options: Any) -> Logits:
        """Read some texts in one pass. Returns their vectors [texts, width] or, for reranking, their scores [texts, 1].

        `ids` are the token ids of each text, `texts` describe them, and `options` are the run options of ONNX Runtime.
        Raises Interrupted and RunnerFailed.
        """
        lengths = np.array([text.num_tokens for text in texts])
        positions = np.arange(lengths.max())
        mask = (positions < lengths[:, np.newaxis]).astype(np.int64)
        filled = np.full(mask.shape, self._pooling.pad_token, np.int64)
        filled[mask == 1] = np.concatenate(ids)
        result = self._run(self._feed(filled, mask, texts, positions), options)
        if self._pooling.task is Task.RERANK:
            scores = self._scores(result)
            # Without overflow for very negative logits.
            return np.exp(-np.logaddexp(0.0, -scores)).astype(np.float32) if self._pooling.has_sigmoid else scores
        if result.ndim == 3:
            left_out = np.array([0 if self._pooling.includes_prompt else text.num_left_out for text in texts])
            result = pool(result, mask * (positions >= left_out[:, np.newaxis]), self._pooling.modes)
        return normalized(result) if self._pooling.normalizes else result

    def _feed(self, ids: Ids, mask: Ids, texts: abc.Sequence[PooledText], positions: Ids) -> dict[str, NDArray[Any]]:
        """Return the inputs of the graph, by name, for a pass over `texts` that are padded to the same length.

        `ids` [texts, tokens] are token ids, `mask` [texts, tokens] is 1 for tokens and 0 for padding, and `positions`
        [tokens] are the positions in a padded text. Inputs for a KV cache are empty.
        """
        feed: dict[str, NDArray[Any]] = {}
        for name, value in self._inputs.items():
            if name == _TYPES:
                # A single text, and what fills a row up, are of the first type.
                seconds = np.array([text.second or len(positions) for text in texts])
                feed[name] = mask * (positions >= seconds[:, np.newaxis])
            elif name.startswith(_PAST):
                _, heads, _, width = value.shape
                width = width if isinstance(width, int) else self._pooling.head_size
                feed[name] = np.zeros((len(ids), heads, 0, width), NUMPY_TYPES[value.type])
            elif name == LAST_POSITIONS:
                lasts = mask.sum(axis=1) - 1
                feed[name] = np.stack([np.arange(len(ids)), lasts], axis=1)[:, np.newaxis]
            else:
                array = {_IDS: ids, _MASK: mask, _POSITIONS: np.broadcast_to(positions, ids.shape)}[name]
                feed[name] = np.ascontiguousarray(array, NUMPY_TYPES[value.type])
        return feed

    def _scores(self, logits: Logits) -> Logits:
        """Return reranking scores [texts, 1] from the logits of a pass. A sigmoid has not been applied to the scores
        yet.

        `logits` are [texts, 1], or [texts, 1, vocab_size] for a model that answers with one token for relevant texts
        ("true") and perhaps another one for irrelevant texts ("false").
        """
        model = self._pooling
        if model.true_token is None:
            return logits.reshape(len(logits), -1)
        last = logits[:, -1]
        scores = last[:, model.true_token]
        if model.false_token is not None:
            scores = scores - last[:, model.false_token]
        return scores[:, np.newaxis]

    def _run_options(self) -> Any:
        options = self._library.RunOptions()
        for name, value in self._entries.items():
            options.add_run_config_entry(name, value)
        return options

    def _run(self, feed: dict[str, NDArray[Any]], options: Any) -> Logits:
        try:
            (result,) = self._session.run([self._output], feed, options)
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            if INTERRUPTED_MESSAGE in str(error):
                raise Interrupted from None
            raise RunnerFailed(f"onnxruntime: {error}") from error
        output: Logits = np.asarray(result, np.float32)
        return output


def _open(graph: Path, model: PoolingModel, threads: int, options: DeviceOptions, profile_prefix: str) -> Any:
    ort_options = session_options(options, threads, profile_prefix=profile_prefix)
    for name, value in DISABLED_FUSIONS.items():
        if not options.providers and name not in options.entries:
            ort_options.add_session_config_entry(name, value)
    if model.true_token is None:
        return open_with(graph, ort_options, options)
    loaded = onnx.load(str(graph), load_external_data=False)
    # Without logits the graph is refused later.
    shapes = [value.type.tensor_type.shape.dim for value in loaded.graph.output if value.name == _LOGITS]
    if not shapes or shapes[0][1].dim_value == 1 or not read_last(loaded.graph, _LOGITS):
        return open_with(graph, ort_options, options)
    ort_options.add_session_config_entry(EXTERNAL_DATA, str(graph.parent))
    return open_with(loaded.SerializeToString(), ort_options, options)


def _output_of(outputs: Collection[str], model: PoolingModel, graph: Path) -> str:
    """Return the name of the output, among `outputs`, in which a graph has vectors for embeddings or, for reranking,
    logits.

    `graph` is the path of the graph, for messages. Raises ModelDirectoryError if the graph has no such output.
    """
    if model.task is Task.RERANK:
        wanted: tuple[str, ...] = (_LOGITS,)
    elif model.modes:
        # A graph that pools has the prompts in its vectors.
        wanted = (*_STATES, *VECTORS) if model.includes_prompt else _STATES
    else:
        wanted = VECTORS
    for name in wanted:
        if name in outputs:
            return name
    raise ModelDirectoryError(f"{graph} has no output {' or '.join(wanted)}; it has {', '.join(outputs)}")


def _check_inputs(inputs: Mapping[str, Any], graph: Path) -> None:
    """Raise ModelDirectoryError if a graph has an input that this runner does not know, or an input of an unsupported
    type.

    `inputs` has ONNX Runtime's descriptions of the inputs by name, and `graph` is the path of the graph, for the
    message.
    """
    supported = {_IDS, _MASK, _TYPES, _POSITIONS, LAST_POSITIONS}
    for name, value in inputs.items():
        if name not in supported and not name.startswith(_PAST):
            raise ModelDirectoryError(f"{graph} has an input that this server does not know: {name}")
        if value.type not in NUMPY_TYPES:
            raise ModelDirectoryError(f"{graph} has an input of a type that this server does not give: {value.type}")


def _batches(texts: abc.Sequence[PooledText], *, are_filled: bool) -> Iterator[list[int]]:
    """Divide texts into passes, the longest texts first. Yields, for each pass, the indexes in `texts` of the texts
    that it reads.

    With `are_filled`, shorter texts of a pass are padded, so a pass reads texts of similar lengths. Otherwise all texts
    of a pass have the same length.
    """
    batch: list[int] = []
    longest = 0
    for number in sorted(range(len(texts)), key=lambda number: -texts[number].num_tokens):
        length = texts[number].num_tokens
        filling = longest - length
        fits = filling <= max(_FEW, _FILLED * longest) if are_filled else not filling
        if batch and (not fits or longest * (len(batch) + 1) > _PASS_TOKENS):
            yield batch
            batch = []
        if not batch:
            longest = length
        batch.append(number)
    if batch:
        yield batch
