"""Grammars that answers must match. The library llguidance compiles them (`Guidance`) and follows them token by token
(`Guide`).

Building llguidance's tokenizer holds the GIL (measured: 0.8 s and 150 MB for 150,000 tokens), so an engine builds it
before it accepts requests. Compiling a grammar releases the GIL and is done in separate threads. The API process that
received the request has compiled the grammar before, with tighter limits, to check it.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from numpy.typing import NDArray

from genai_server.engine.model.files import TOKENIZER
from genai_server.engine.worker_thread import WorkerThread
from genai_server.errors import GrammarFailed, InvalidField
from genai_server.grammar_checker.compiler import ENGINE_STACK, byte_tokenizer, compile_grammar, reason, stack
from genai_server.messages.generation_request import ModelInfo
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# Limits of the cache of compiled grammars and error messages, for all tenants together. A grammar takes some hundred
# bytes for each of its characters. The second limit applies to all but the newest.
_MAX_CACHED_GRAMMARS = 32
_MAX_CACHED_CHARACTERS = 50_000
# Copies of a compiled grammar share the states of its lexer, which only grow (350 bytes each). Beyond 250,000 states no
# copy works any more, so the grammar is compiled again after this number of tokens.
# 20,000 tokens took 7 MB for each cached grammar.
_MAX_FOLLOWED = 5_000
# Seconds of processor time for following a grammar: each token adds the first, up to the second in all. The slowest
# useful grammars measured (strings with patterns and lengths, 150,000 tokens) took 0.003 s for each token (2 cores).
SECONDS_PER_TOKEN = 0.01
MAX_SAVED_SECONDS = 0.5
# Seconds that all grammars may take of a step in the engine's loop; other threads follow the slowest ones.
STEP_SECONDS = 0.005
# The cost of the next token is estimated as that of the slowest recent one, which loses this share with each token:
# tokens that the model prefers and the grammar allows need no mask, and so take far less time than others.
_DECAY = 0.2

Compiled = LLMatcher | str
# A tenant and one of its grammars.
_Key = tuple[str, str]


@dataclass
class CachedGrammar:
    """An entry in the cache of compiled grammars: the compiled grammar, or the error message if it is invalid, and how
    many tokens of answers it has been followed for. After too many tokens it is compiled again, because its memory
    grows.
    """

    # The compiled grammar, or the error message of its compilation.
    compiled: Compiled
    # Number of tokens, of all answers together, for which the grammar has been followed.
    followed: int = 0


class UnlockedConsumer:
    """Advances the matchers of llguidance, each of which follows the grammar of an answer, without holding the GIL.
    `LLMatcher.consume_token` would hold it.

    llguidance releases the GIL only if several matchers are advanced at once, so a matcher that has already ended is
    advanced together with the wanted one. The work is done in another thread, and is therefore not part of the
    processor time of the calling thread.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._executor = LLExecutor(1)
        self._end = tokenizer.eos_token
        self._ended = LLMatcher(tokenizer, 'start: ""', log_level=0)
        self._ended.consume_token(self._end)

    def consume(self, matcher: LLMatcher, token: int) -> None:
        """Advance a matcher by the chosen token. Returns when that is done. Any thread may call this."""
        self._executor.consume_token_par([(matcher, token), (self._ended.deep_copy(), self._end)])


class Guide:
    """Follows the grammar of one answer, and limits the processor time that this takes. `Guidance.guide` creates it for
    a sequence. Before each token, `allowed` or `allows` says which tokens may come, and `commit` then advances the
    grammar by the chosen one.

    Only one thread at a time may call methods. `clock` returns the processor time of the calling thread in seconds,
    which does not depend on other programs on a busy machine.
    """

    def __init__(
        self, cached: CachedGrammar, matcher: LLMatcher, vocab_size: int, consumer: UnlockedConsumer, clock: Clock
    ) -> None:
        self._kept = cached
        self._consumer = consumer
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._clock = clock
        self._saved = MAX_SAVED_SECONDS
        self._spent = 0.0  # seconds for the next token
        # Seconds that the next token is expected to take.
        self.cost = 0.0

    def allowed(self) -> NDArray[np.bool_]:
        """Return a mask [vocab_size] that is true for each token that may come next in the answer. If the grammar may
        end here, tokens that end an answer are among them.

        Raises GrammarFailed if the grammar has become too complex, or takes too much time.
        """
        with self._working():
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(mask, bitorder="little", count=self._vocab_size).view(np.bool_)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next, where `token` is not one that ends the answer. This is usually far faster than
        `allowed`.

        For a slow grammar the mask of all tokens is computed, because llguidance holds the GIL when it checks a single
        token, but not when it computes a mask. Raises GrammarFailed if the grammar has become too complex, or takes too
        much time.
        """
        if self.is_slow:
            return bool(self.allowed()[token])
        with self._working():
            return self._matcher.validate_tokens([token]) == 1

    def forced(self) -> list[int]:
        """Return tokens of the text that must come next because the grammar allows nothing else; empty if the grammar
        leaves a choice.

        The model itself might divide that text into other tokens. Raises GrammarFailed if the grammar has become too
        complex, or takes too much time.
        """
        with self._working():
            return self._matcher.compute_ff_tokens()

    def commit(self, token: int) -> None:
        """Advance the grammar by the token that was chosen for the answer.

        Raises GrammarFailed if the grammar does not allow the token, has become too complex, or takes too much time.
        """
        with self._working():
            if self.is_slow:
                self._consumer.consume(self._matcher, token)
            else:
                self._matcher.consume_token(token)
            self._kept.followed += 1
        self.cost = max(self._spent, (1 - _DECAY) * self.cost)
        self._saved = min(MAX_SAVED_SECONDS, self._saved - self._spent + SECONDS_PER_TOKEN)
        self._spent = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether following the grammar by one more token is expected to take more processor time than a step has for
        the grammars of all sequences together.
        """
        return self.cost > STEP_SECONDS

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is a complete match of the grammar, so that it may end here. More tokens may still
        be possible.
        """
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether the answer so far matches the grammar and no further token is possible.

        False for a grammar that has failed, although llguidance reports it as stopped, too.
        """
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Context manager around a call of llguidance. It measures the processor time of the call, and raises
        GrammarFailed afterwards if the grammar has become too complex or has taken too much time.
        """
        began = self._clock()
        yield
        self._spent += self._clock() - began
        if self._matcher.is_error():
            self._kept.followed = _MAX_FOLLOWED  # compile it again, so that the next answer does not fail, too
            raise GrammarFailed(f"the answer's grammar cannot be followed any further: {reason(self._matcher)}")
        if self._spent > self._saved + SECONDS_PER_TOKEN:
            raise GrammarFailed(
                f"the answer's grammar takes too long to follow: {1000 * self._spent:.0f} ms of processor time for a "
                f"token, where {1000 * SECONDS_PER_TOKEN:g} ms for each token, and {MAX_SAVED_SECONDS:g} s in advance, "
                "are the limit; rules that can be read in many ways, such as 's: s s', take longer with each token"
            )


class Guidance:
    """Compiles grammars for the tokens of one model, and caches them. An engine creates one object when it loads the
    model, and only the thread of its loop may use it.

    If there is no `tokenizer`, all grammars are refused with the text `reason`. Each tenant (API key) has its own
    compiled grammars, because the time of an answer shows whether its grammar was compiled before: a shared cache would
    reveal which schemas other tenants use.
    """

    def __init__(
        self, tokenizer: LLTokenizer | None, vocab_size: int, reason: str = "", clock: Clock = time.thread_time
    ) -> None:
        self._clock = clock
        self._tokenizer = tokenizer
        self._consumer = None if tokenizer is None else UnlockedConsumer(tokenizer)
        self._vocab_size = vocab_size
        self._reason = reason
        # By tenant and grammar, the least recently used first.
        self._kept: OrderedDict[_Key, CachedGrammar] = OrderedDict()
        self._compiling: dict[_Key, Future[Compiled]] = {}
        self._worker = WorkerThread("guidance", has_second=True, starting=partial(stack, ENGINE_STACK))
        self._texts: dict[int, bytes] = {}  # of tokens, once they were asked for

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer, without which `token_bytes` must not be called and all grammars are refused."""
        return self._tokenizer is not None

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the text of a token, which may end within a character. `has_tokenizer` must be
        true. Any thread may call this.
        """
        text = self._texts.get(token)
        if text is None:
            assert self._tokenizer is not None
            text = self._texts[token] = self._tokenizer.decode_bytes([token])
        return text

    def guide(self, grammar: str, *, tenant: str = "") -> Guide | None:
        """Return a new Guide, which follows `grammar` for one answer; None if the grammar is not in the cache, so that
        the caller must `compile` it first.

        `tenant` is the tenant of the request. Raises InvalidField if compiling the grammar has failed before, or if all
        grammars are refused because there is no tokenizer.
        """
        if self._consumer is None:
            raise InvalidField("grammar", f"cannot be followed by this model: {self._reason}")
        cached = self._kept.get((tenant, grammar))
        if cached is None or cached.followed >= _MAX_FOLLOWED:
            return None
        self._kept.move_to_end((tenant, grammar))
        if isinstance(cached.compiled, str):
            raise InvalidField("grammar", f"is wrong: {cached.compiled}")
        return Guide(cached, cached.compiled.deep_copy(), self._vocab_size, self._consumer, self._clock)

    def compile(
        self, grammar: str, done: Callable[[Compiled], None], *, tenant: str = "", low_priority: bool = False
    ) -> None:
        """Start to compile a tenant's grammar in another thread, which may take a second. `done` is called in that
        thread with the compiled grammar, or with an error message if it is invalid.

        The caller must then pass this result to `keep` in the loop's thread. A grammar that is already being compiled
        for the tenant is not compiled twice. Tenants take turns, no tenant waits for a single grammar of another one,
        and low-priority grammars come last.
        """
        key = tenant, grammar
        if key not in self._compiling:
            job = partial(self._compile, grammar)
            self._compiling[key] = self._worker.submit(job, tenant=tenant, low_priority=low_priority)
        self._compiling[key].add_done_callback(lambda compiled: done(compiled.result()))

    def keep(self, grammar: str, compiled: Compiled, *, tenant: str = "") -> None:
        """Put the result of `compile`, a compiled grammar or an error message, into the cache of the tenant's grammars.

        If the cache then has too many grammars, the least recently used grammar of the tenant with the most grammars is
        removed. If its grammars have too many characters together, the longest grammar of the tenant with the most
        characters is removed. Thus no tenant displaces grammars of tenants that have fewer.
        """
        newest = tenant, grammar
        self._compiling.pop(newest, None)
        self._kept[newest] = CachedGrammar(compiled)
        self._kept.move_to_end(newest)
        if len(self._kept) > _MAX_CACHED_GRAMMARS:
            del self._kept[self._keys_of_largest_tenant(newest, lambda key: 1)[0]]
        while sum(map(_num_characters, self._kept)) - len(grammar) > _MAX_CACHED_CHARACTERS:
            del self._kept[max(self._keys_of_largest_tenant(newest, _num_characters), key=_num_characters)]

    def _keys_of_largest_tenant(self, newest: _Key, size: Callable[[_Key], int]) -> list[_Key]:
        """Return the keys (tenant and grammar) of cached grammars of the tenant whose grammars have the largest sum of
        `size`. The least recently used grammar comes first.

        The grammar `newest` is counted but not returned. Among tenants with equal sums, the tenant of `newest` is
        chosen, or else the tenant with the least recently used grammar.
        """
        held: Counter[str] = Counter()
        for key in self._kept:
            held[key[0]] += size(key)
        candidates = [key for key in self._kept if key != newest]
        largest = max((tenant for tenant, _ in candidates), key=lambda tenant: (held[tenant], tenant == newest[0]))
        return [key for key in candidates if key[0] == largest]

    def _compile(self, grammar: str) -> Compiled:
        assert self._tokenizer is not None
        return compile_grammar(self._tokenizer, grammar)


def _num_characters(key: _Key) -> int:
    return len(key[1])


def bytes_guidance(model: ModelInfo, clock: Clock = time.thread_time) -> Guidance:
    """Return a Guidance for a model whose tokens are the bytes of UTF-8 text, such as the scripted model for tests.
    `clock` returns the calling thread's processor time in seconds.
    """
    tokenizer = byte_tokenizer([b"<end>"] * len(model.eos_token_ids), model.eos_token_ids, model.vocab_size)
    return Guidance(tokenizer, model.vocab_size, clock=clock)


def model_guidance(model_dir: Path, model: ModelInfo) -> Guidance:
    """Return a Guidance for the model in the directory `model_dir`, with the tokenizer there. If llguidance cannot use
    this tokenizer, the result refuses all grammars.
    """
    path = str(model_dir / TOKENIZER)
    try:
        try:
            tokenizer = LLTokenizer(path, model.vocab_size, model.eos_token_ids)
        except ValueError:  # it has more tokens than the model, which never generates the others
            tokenizer = LLTokenizer(path, None, model.eos_token_ids)
    except (
        BaseException
    ) as error:  # a panic of the library is not an Exception, and the model can serve without grammars
        log.warning("answers cannot be guided by grammars: %s", error)
        return Guidance(None, model.vocab_size, str(error))
    return Guidance(tokenizer, model.vocab_size)
