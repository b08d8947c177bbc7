"""The interface between the engine's loop and the runners, which drive a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from genai_server.engine.kv_memory import KvMemory
from genai_server.engine.runners.kv_cache import KvSlots
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.generation import GenerationRequest, ModelInfo, PooledText


@dataclass(frozen=True)
class Opening:
    """How a sequence is begun."""

    # Tokens that the sequence can grow to.
    max_length: int
    # Whether a cached prefix may be reused.
    reuse: bool = True
    # Only cached prefixes with the same salt are reused.
    salt: str | None = None
    # Whether the answer must be bitwise equal in any batch.
    exact: bool = False
    # What the runner has loaded as an adapter.
    adapter: object | None = None
    # Its sampling settings, for runners which choose tokens themselves.
    request: GenerationRequest | None = None


@dataclass(frozen=True)
class Row:
    """What a pass reads of one sequence."""

    # The sequence's id.
    sequence: int
    # The tokens to read.
    tokens: Sequence[int]
    # True for the newest token of an answer, which a draft may follow; False for a prompt's or tokens read again.
    decodes: bool
    # Whether the logits after each token are wanted, or only those after the last one.
    positions: bool = False
    # The next token is chosen among this many best ones; 0 means all.
    num_choices: int = 0
    # What the tokens consist of, for a runner which pools.
    texts: Sequence[PooledText] = ()


class Terminated(Exception):
    """The sequence's session is in the terminated state (runtime option terminate_session)."""


class Interrupted(Exception):
    """`interrupt` has ended the pass. It read none of its tokens, so all of them can be given again."""


class Runner(Protocol):
    """Runs sequences of tokens through a model. Only `interrupt` may be called by other threads.

    An id names a sequence between `open` and `close`. Every method except `close` may raise RunnerFailed, which
    concerns only the sequences of this call.
    """

    @property
    def model(self) -> ModelInfo:
        """The model that was loaded."""
        ...

    @property
    def max_rows(self) -> int:
        """The most sequences that one forward pass can decode."""
        ...

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        """Begin a sequence; returns how many tokens of its prompt come from a cached prefix."""
        ...

    def forward(self, rows: Sequence[Row]) -> list[Scores]:
        """Run a pass of at most `max_rows` decoding rows, or of one other row. Where `Batch.mixes`, it may have both.

        Where `Batch.verifies`, a decoding row alone may have a draft. Its scores are the logits after each token. The
        draft does not count as read, except for what is given to `Batch.accept` before the next pass.

        Pending scores mean that the row's tokens were not read, and must be given again. The next pass may overwrite
        the arrays. Raises Interrupted, and Terminated if the pass has one sequence.
        """
        ...

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        """Read the next tokens of a prompt; returns the logits [vocab_size] after the last of them.

        With `positions`, returns those after each of them [tokens, vocab_size]. The next pass may overwrite the array.
        Raises Terminated and Interrupted.
        """
        ...

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        """Read one more token of each of at most `max_rows` sequences; returns the logits [sequences, vocab_size].

        The next pass may overwrite the array. Raises Interrupted, and Terminated if there is one sequence.
        """
        ...

    def interrupt(self) -> None:
        """End the pass in progress, if the runner can. Any thread may call this."""
        ...

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        """Set a runtime option of onnxruntime-genai; `enable_profiling` takes "0" or the path prefix of the files."""
        ...

    def close(self, sequence: int) -> None:
        """End a sequence and free its memory."""
        ...

    def end_session(self) -> None:
        """End the model's session, so that ONNX Runtime writes the session's profile. No other call follows."""
        ...


class ExportingRunner(Runner, Protocol):
    """A runner with adapters, whose keys and values can be copied out."""

    def load_adapter(self, path: Path) -> object:
        """Returns what `open` takes as an adapter; its memory is freed with the last reference.

        Raises AdapterLoadFailed.
        """
        ...

    def export(self, sequence: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Copies of these outputs [1, …] of a sequence's last pass, by name."""
        ...


class Batch(Runner, Protocol):
    """A runner of many sequences in one pass, beside a runner which runs each sequence alone."""

    @property
    def name(self) -> str:
        """The runner's name in the API."""
        ...

    @property
    def nodes(self) -> Mapping[str, int | None]:
        """How many nodes of the graph each provider runs; None where this is unknown."""
        ...

    @property
    def lone_row_is_exact(self) -> bool:
        """Whether a sequence alone is bitwise equal to the same sequence in a batch."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether the runner reads prompts and chooses tokens by itself.

        If so, `open` begins the answer, and returns the prompt's length less one.
        """
        ...

    @property
    def mixes(self) -> bool:
        """Whether a pass without exact sequences may decode and read a chunk of one prompt."""
        ...

    @property
    def verifies(self) -> bool:
        """Whether a lone row may have a draft."""
        ...

    @property
    def int8_from(self) -> int | None:
        """Passes of at least this many tokens may have 8-bit weights; None if no pass has."""
        ...

    @property
    def memory(self) -> KvMemory:
        """The memory that its sequences share."""
        ...

    @property
    def slots(self) -> KvSlots | None:
        """The KV cache slots; None if the runner does not keep them itself."""
        ...

    @property
    def takes_past(self) -> bool:
        """Whether `adopt` can be used."""
        ...

    @property
    def present_names(self) -> tuple[str, ...]:
        """The graph's outputs that hold keys and values."""
        ...

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidField for a field of a request which this runner does not support."""
        ...

    def accept(self, sequence: int, tokens: Sequence[int]) -> None:
        """Count the first tokens of the draft as read that the sequence's last pass had."""
        ...

    def adopt(
        self,
        sequence: int,
        read: list[int],
        num_prefilled: int,
        past: dict[str, NDArray[Any]],
        *,
        exact: bool = False,
        salt: str | None = None,
    ) -> None:
        """Take over a sequence, with the keys and values [1, kv_heads, …, head_size] that another runner computed.

        The first `num_prefilled` tokens of `read` came from prefill.
        """
        ...

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        """Look for a longer cached prefix of a prompt before its first chunk; returns the same as `open`.

        Other sequences may have read the same beginning since `open`.
        """
        ...

    def forget(self) -> int:
        """Drop all cached prefixes of ended sequences; returns how many there were."""
        ...
