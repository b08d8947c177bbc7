"""Grammars that answers must fit: compiled and followed token by token by llguidance.

The library's tokenizer holds Python's lock while it is made (measured: 0.8 s and 150 MB for 150,000 tokens), so an
engine makes it before it takes work. Compiling does not hold it, and is done in a thread of its own. What comes here
has been compiled once before, by the grammar checker of an API process, with less of everything.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from genai_server.engine.model.files import TOKENIZER
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.generation import ModelInfo
from genai_server.grammar_checker.compiler import ENGINE_STACK, byte_tokenizer, compile_grammar, reason, stack

log = logging.getLogger(__name__)
# Compiled grammars that are kept, or why they could not be. One of many characters takes some hundred bytes for each:
# beside the newest the others have so many together, and the longest of them is forgotten first.
_KEPT_GRAMMARS = 32
_KEPT_CHARACTERS = 50_000
# The copies of a compiled grammar share what its lexer learns, which only grows (350 bytes for each state) and has a
# limit (250,000 states), behind which none of them works any more. So after these tokens it is compiled anew.
_MOST_FOLLOWED = 20_000

Compiled = LLMatcher | str


@dataclass
class KeptGrammar:
    """What has come of a grammar, and how many tokens of answers have gone along it."""

    compiled: Compiled
    followed: int = 0


class Guide:
    """One answer's way through its grammar."""

    def __init__(self, kept: KeptGrammar, matcher: LLMatcher, vocab_size: int) -> None:
        self._kept = kept
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens [vocab_size] may come next; where the grammar may end, those that end an answer are among them.

        Raises GrammarFailed when the grammar has become too complex.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(mask, bitorder="little", count=self._vocab_size).view(np.bool_)

    def commit(self, token: int) -> None:
        """Go on behind a token. Raises GrammarFailed if it does not fit, or when the grammar becomes too complex."""
        self._matcher.consume_token(token)
        self._kept.followed += 1
        self._check()

    @property
    def may_end(self) -> bool:
        """Whether the answer up to now fits the grammar."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether nothing more can come."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._kept.followed = _MOST_FOLLOWED  # the next answer shall not fail for what this one has left
            raise GrammarFailed(f"the answer's grammar cannot be followed any further: {reason(self._matcher)}")


class Guidance:
    """The grammars of one vocabulary; without a tokenizer, for the reason given, none is taken.

    Belongs to one thread, and gives `compile`'s work to another.
    """

    def __init__(self, tokenizer: LLTokenizer | None, vocab_size: int, reason: str = "") -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._reason = reason
        self._kept: OrderedDict[str, KeptGrammar] = OrderedDict()
        self._compiling: dict[str, Future[Compiled]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="guidance")

    def guide(self, grammar: str) -> Guide | None:
        """The way through a grammar from its start, or None if the grammar is yet to be compiled.

        Raises InvalidField if it cannot be.
        """
        if self._tokenizer is None:
            raise InvalidField(f"answers of this model cannot be guided by a grammar: {self._reason}", param="grammar")
        kept = self._kept.get(grammar)
        if kept is None or kept.followed >= _MOST_FOLLOWED:
            return None
        self._kept.move_to_end(grammar)
        if isinstance(kept.compiled, str):
            raise InvalidField(f"the grammar is wrong: {kept.compiled}", param="grammar")
        return Guide(kept, kept.compiled.deep_copy(), self._vocab_size)

    def compile(self, grammar: str, done: Callable[[Compiled], None]) -> None:
        """Compile a grammar, which may take a second; `done` is called in another thread with what to `keep`.

        Whoever asks for the same one meanwhile is told the same.
        """
        if grammar not in self._compiling:
            with stack(ENGINE_STACK):  # for the thread, which is started when it is first needed
                self._compiling[grammar] = self._worker.submit(self._compile, grammar)
        self._compiling[grammar].add_done_callback(lambda compiled: done(compiled.result()))

    def keep(self, grammar: str, compiled: Compiled) -> None:
        """Remember what has come of a grammar; what was asked for longest ago or is longest, is forgotten for it."""
        self._compiling.pop(grammar, None)
        self._kept[grammar] = KeptGrammar(compiled)
        self._kept.move_to_end(grammar)
        if len(self._kept) > _KEPT_GRAMMARS:
            self._kept.popitem(last=False)
        while sum(map(len, self._kept)) - len(grammar) > _KEPT_CHARACTERS:
            del self._kept[max((other for other in self._kept if other != grammar), key=len)]

    def _compile(self, grammar: str) -> Compiled:
        assert self._tokenizer is not None
        return compile_grammar(self._tokenizer, grammar)


def bytes_guidance(model: ModelInfo) -> Guidance:
    """Guidance where tokens are bytes."""
    tokenizer = byte_tokenizer([b"<end>"] * len(model.eos_token_ids), model.eos_token_ids, model.vocab_size)
    return Guidance(tokenizer, model.vocab_size)


def model_guidance(model_dir: Path, model: ModelInfo) -> Guidance:
    """Guidance for a model directory; who asks for a grammar is told of a tokenizer that the library cannot use."""
    path = str(model_dir / TOKENIZER)
    try:
        try:
            tokenizer = LLTokenizer(path, model.vocab_size, model.eos_token_ids)
        except ValueError:  # it may have more tokens than the model, which then never come
            tokenizer = LLTokenizer(path, None, model.eos_token_ids)
    except BaseException as error:  # a panic of the library is no Exception, and the model can serve without
        log.warning("answers cannot be guided by grammars: %s", error)
        return Guidance(None, model.vocab_size, str(error))
    return Guidance(tokenizer, model.vocab_size)
