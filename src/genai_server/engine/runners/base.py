"""What the engine's loop asks of a runner: the one place that drives a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from genai_server.engine.runners.scores import Logits, Scores
from genai_server.generation import GenerationRequest, ModelInfo


@dataclass(frozen=True)
class Opening:
    """How a sequence is begun: tokens that it can grow to, whether a past that began alike may be used again, and
    whether its answer must be bit for bit the same in any company. Only a past of the same `salt` is used again. An
    `adapter` is what the runner has loaded. The `request` tells a runner that chooses tokens itself how.
    """

    max_length: int
    reuse: bool = True
    salt: str | None = None
    exact: bool = False
    adapter: object | None = None
    request: GenerationRequest | None = None


@dataclass(frozen=True)
class Row:
    """What a pass reads of one sequence."""

    sequence: int
    tokens: Sequence[int]
    # Whether it is the one token that the sequence's answer goes on from, else it is of a prompt or read anew.
    decodes: bool
    # Whether the logits after each of the tokens are wanted, not only those after the last.
    positions: bool = False
    # Of how many of the best tokens the next one will be chosen; 0 is all of them.
    num_choices: int = 0


class Terminated(Exception):
    """The sequence's session is in the terminated state (runtime option terminate_session)."""


class Interrupted(Exception):
    """`interrupt` has ended the pass: none of its tokens were read, all of them can be given again."""


class Runner(Protocol):
    """Runs sequences of tokens through a model; used by one thread only, but for `interrupt`.

    A sequence is named by its id between `open` and `close`. Everything but `close` may raise RunnerFailed, which
    concerns the sequences of this call only.
    """

    @property
    def model(self) -> ModelInfo:
        """The model that was loaded."""
        ...

    @property
    def max_rows(self) -> int:
        """Sequences that one forward pass can take a token further."""
        ...

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        """Begin a sequence; returns how many tokens of the prompt need not be read, for their past is still there."""
        ...

    def forward(self, rows: Sequence[Row]) -> list[Scores]:
        """Run a pass: at most `max_rows` that decode, or one other; both where a batch mixes them.

        Of a sequence whose scores are pending the tokens were not read, and are to be given again. The arrays may be
        overwritten by the next pass. Raises Terminated, if it is one sequence, and Interrupted.
        """
        ...

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        """Read the next tokens of a prompt; returns the logits [vocab_size] after the last of them, or with `positions`
        those after each of them [tokens, vocab_size].

        The array may be overwritten by the next pass. Raises Terminated and Interrupted.
        """
        ...

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        """Read one more token of each of at most `max_rows` sequences; returns the logits [sequences, vocab_size].

        The array may be overwritten by the next pass. Raises Terminated, if it is one sequence, and Interrupted.
        """
        ...

    def interrupt(self) -> None:
        """End the pass that runs now, if the runner can; any thread may call it."""
        ...

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        """Set a runtime option of onnxruntime-genai; `enable_profiling` takes "0" or the path prefix of the files."""
        ...

    def close(self, sequence: int) -> None:
        """End a sequence and free its memory."""
        ...

    def end_session(self) -> None:
        """End the model's session, for that is when ONNX Runtime writes what it has profiled of it; nothing follows."""
        ...


class ExportingRunner(Runner, Protocol):
    """A runner whose keys and values can be copied out, and that has adapters."""

    def load_adapter(self, path: Path) -> object:
        """What `open` takes as an adapter; its memory is free once nobody has it. Raises AdapterLoadFailed."""
        ...

    def export(self, sequence: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Copies of these outputs [1, …] of a sequence's last pass, by name."""
        ...


class Batch(Runner, Protocol):
    """A runner of many sequences in one pass, beside one that runs each alone."""

    @property
    def name(self) -> str:
        """What the API calls this way of running them."""
        ...

    @property
    def nodes(self) -> Mapping[str, int | None]:
        """How many nodes of the graph each provider runs, None where that is not known."""
        ...

    @property
    def lone_row_is_exact(self) -> bool:
        """Whether a sequence alone gives bit for bit what it gives in company."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether it reads prompts by itself, and chooses the tokens from the answer's first one on: `open` begins the
        answer, and returns that all of the prompt but its last token need not be read.
        """
        ...

    @property
    def mixes(self) -> bool:
        """Whether a pass may decode and read a chunk of one prompt; only sequences that need not be exact."""
        ...

    @property
    def int8_from(self) -> int | None:
        """From how many tokens on a pass has weights of 8 bits; None if none has."""
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
        """Raises InvalidField for what a request wants and cannot have here."""
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
        """Go on with a sequence whose keys and values [1, kv_heads, …, head_size] another runner has made."""
        ...

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        """Find more of a prompt of which nothing has been read yet, for others go on meanwhile; returns what `open`
        does.
        """
        ...

    def forget(self) -> int:
        """Forget the past of all sequences that have ended; returns how many had left one."""
        ...
