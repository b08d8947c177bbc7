"""Count the prompt tokens that conversations read again, though an earlier turn had read them.

Conversations take turns on an engine in this process, with its scheduler and prefix cache. Each turn's prompt has the
one before, its answer and new tokens. New are all tokens behind the common beginning with the turn before. A cache that
forgets nothing would read only these; models with states of fixed size can only continue from checkpoints.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from _models.engine_loop import Engine
from _models.engine_spec import engine_spec
from _models.table import table

from genai_server.engine.model.files import read_config
from genai_server.engine.runners.choose import load_model
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.messages.generation_request import GenerationRequest

HEAD = ["conversations", "turns", "prompt tokens", "new", "read", "read / new"]


@dataclass(frozen=True)
class Kind:
    """How clients and templates write a turn into the next prompt."""

    title: str
    # Tokens at the beginning of an answer that the next prompt lacks, as reasoning is.
    num_dropped: int = 0
    # Tokens at the end of a prompt that the next one lacks, as those that begin the reasoning are.
    num_opening: int = 0


KINDS = (
    Kind("with complete answers"),
    Kind("without reasoning", 20),
    Kind("without reasoning and its opening", 20, 4),
)


class Conversation:
    """The tokens of one conversation, and how many of its prompts were new and were read."""

    def __init__(self, kind: Kind, chance: random.Random, vocabulary: int) -> None:
        self.num_prompt = self.num_new = self.num_read = 0
        self._kind = kind
        self._chance = chance
        self._vocabulary = vocabulary
        self._history: list[int] = []
        self._before: list[int] = []

    def prompt(self, num_tokens: int) -> list[int]:
        """The next turn's prompt, with this number of tokens from the client."""
        self._history += self._random(num_tokens)
        prompt = [*self._history, *self._random(self._kind.num_opening)]
        pairs = zip(prompt, self._before, strict=False)
        self.num_prompt += len(prompt)
        self.num_new += len(prompt) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._before = prompt
        return prompt

    def add(self, answer: list[int], num_cached: int) -> None:
        """Continue with the answer to the last prompt, of which this number of tokens was in the prefix cache."""
        self.num_read += len(self._before) - num_cached
        # The last token of an answer has not been read.
        self._before = [*self._before, *answer[:-1]]
        self._history += answer[self._kind.num_dropped :]

    def _random(self, num_tokens: int) -> list[int]:
        return [self._chance.randrange(3, self._vocabulary) for _ in range(num_tokens)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--turns", type=int, default=20, help="of each conversation (20)")
    parser.add_argument("--clients", type=int, default=3, help="conversations at once (3)")
    parser.add_argument("--tokens", type=int, default=60, help="mean number of new ones that a client sends (60)")
    parser.add_argument("--answers", type=int, default=40, help="tokens of an answer (40)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    max_length = arguments.turns * (2 * arguments.tokens + arguments.answers) + 100
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_model(engine_spec(arguments.model_dir, arguments.clients, max_length, Path(folder) / "cache"))
        if loaded.batch is None:
            parser.exit(1, f"{arguments.model_dir} does not run in a batch: {loaded.batching.reason}\n")
        engine = Engine(loaded, model_guidance(arguments.model_dir, loaded.main.model), Path(folder))
        rows = [row(engine, kind, arguments, max_length) for kind in KINDS]
    print(table([HEAD, *rows], markdown=arguments.markdown))


def row(engine: Engine, kind: Kind, arguments: argparse.Namespace, max_length: int) -> list[str]:
    """Hold the conversations of a kind, all at once, and count their tokens together."""
    chance = random.Random(kind.title)
    vocabulary = int(read_config(arguments.model_dir)["model"]["vocab_size"])
    conversations = [Conversation(kind, chance, vocabulary) for _ in range(arguments.clients)]
    for _ in range(arguments.turns):
        lengths = [chance.randint(arguments.tokens // 2, 3 * arguments.tokens // 2) for _ in conversations]
        prompts = [conversation.prompt(length) for conversation, length in zip(conversations, lengths, strict=True)]
        answered = engine.answer(
            [
                GenerationRequest(f"client {number}", prompt, arguments.answers, max_length, ignore_eos=True)
                for number, prompt in enumerate(prompts)
            ]
        )
        ends = sorted(answered.ends, key=lambda end: end.key)
        for conversation, tokens, end in zip(conversations, answered.tokens, ends, strict=True):
            conversation.add(tokens, end.num_cached)
    num_prompt, num_new, num_read = (
        sum(getattr(conversation, name) for conversation in conversations)
        for name in ("num_prompt", "num_new", "num_read")
    )
    counts = [f"{arguments.turns}", f"{num_prompt}", f"{num_new}", f"{num_read}", f"{num_read / num_new:.3f}"]
    return [kind.title, *counts]


if __name__ == "__main__":
    main()
