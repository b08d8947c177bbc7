"""llguidance's grammar compiler with this server's limits. Engines use it (`compile_grammar`), and so does the main
program of the worker process that checks untrusted grammars, where a crash affects nothing else (`complaint`).

A question to the worker process contains a grammar; the answer is the compiler's error message, or null. The module
imports little, reads no environment variables and holds no secrets.
"""

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from genai_server.workers.worker_loop import Answer, answer_questions

# Limit on the lexer of a grammar. The library's default of 1,000,000 allows 4 s and 170 MB; this allows 0.5 s and 50 MB
# (2 cores), and a schema with 1,200 dates.
_LEXER_FUEL = 300_000
# Limit on a grammar's ambiguity. The library's default of 2000 allows 0.25 s for each token, which delays all streams;
# this allows 0.05 s (2 cores), and an object with 200 optional properties.
_MAX_ITEMS = 1000
# Limit on all rows of items that one mask tries. The library's default is 50,000. Useful grammars need up to 3,000 with
# 150,000 tokens.
_MAX_ITEMS_IN_STEP = 10_000
# Bytes of stack. The compiler recurses for each rule that leads to another: 2,700 of them end a process with 8 MiB, 650
# one with 2 MiB. The engine has four times the stack of the check, so a checked grammar fits there.
CHECK_STACK = 2 * 1024 * 1024
ENGINE_STACK = 4 * CHECK_STACK
_MAX_MESSAGE = 500
_EXPRESSION_ERROR = re.compile(r"regex parse error:\n.*?^error: [^\n]*", re.MULTILINE | re.DOTALL)
# Random answers that a check follows, and the tokens of each.
_WALKS, _STEPS = 3, 10
# References to tokens in a grammar: by id, and by text.
_IDS = re.compile(r"<\[([-^\d,\s]+)\]>")
_NAMES = re.compile(r"<[^<>\s\[\]]+>")
# The token that ends an answer; the tokens before it are bytes.
_END = 256
_MAX_ID, _MAX_NAMES = 300_000, 1_000


def byte_tokenizer(special: Sequence[bytes], eos: Sequence[int], vocab_size: int) -> LLTokenizer:
    """Return a tokenizer for llguidance with `vocab_size` tokens: the 256 bytes, followed by the special tokens and by
    empty tokens. `eos` are the ids of the tokens that end a text.
    """
    return LLTokenizer(TokenizerWrapper(_Bytes(special, eos, vocab_size)), vocab_size, list(eos))


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher | str:
    """Compile a grammar for a tokenizer. Returns the matcher, with the first token mask computed, or a text with the
    reason why that is impossible.

    Python's lock (GIL) is released during compilation.
    """
    try:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
        # The first mask may take a second, too; each copy of the matcher includes what it has computed.
        matcher.compute_bitmask()
    except BaseException as error:  # a panic of the library is not an Exception
        return shortened_message(str(error))
    return reason(matcher) if matcher.is_error() else matcher


def reason(matcher: LLMatcher) -> str:
    """Return llguidance's reason, shortened, why a matcher has failed and cannot continue."""
    return shortened_message(matcher.get_error())


def shortened_message(words: str) -> str:
    """Return `words`, an error message of llguidance, cut to a maximum length, and without the backtrace that the
    message of a panic contains.
    """
    return words.partition("<backtrace>")[0].removesuffix("<non-verbose/>").strip()[:_MAX_MESSAGE]


def complaint(grammar: str) -> str | None:
    """Compile a grammar without knowing the model, and return the compiler's error message; None if the grammar is
    valid.

    A valid grammar is also tried: random answers of a few tokens are generated with it, as an engine would do. Errors
    that depend on a model's tokens are only found in the engine.
    """
    matcher = compile_grammar(_placeholder_tokenizer(grammar), grammar)
    if isinstance(matcher, LLMatcher):
        _follow(matcher)
        return None
    wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
    if not wrong:
        return None
    # The message quotes an internal grammar around a regular expression.
    expression = _EXPRESSION_ERROR.search(messages[0])
    return shortened_message(expression[0] if expression else messages[0])


@contextmanager
def stack(size: int) -> Iterator[None]:
    """Return a context manager: threads that are started within the `with` block have a stack of `size` bytes."""
    before = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(before)


def _limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=_MAX_ITEMS,
        step_max_items=_MAX_ITEMS_IN_STEP,
        initial_lexer_fuel=_LEXER_FUEL,
        verbose_errors=False,
    )


def _follow(matcher: LLMatcher) -> None:
    """Generate a few random answers of limited length with a matcher, to find errors in its grammar. The answers are
    the same in each run.
    """
    for seed in range(_WALKS):
        chance, answer = random.Random(seed), matcher.deep_copy()
        for _ in range(_STEPS):
            allowed = int.from_bytes(answer.compute_bitmask(), "little") & ~(1 << _END)
            if not allowed or answer.is_stopped():
                break
            tokens = [token for token in range(_END) if allowed >> token & 1]
            answer.consume_token(chance.choice(tokens or [allowed.bit_length() - 1]))


def _placeholder_tokenizer(grammar: str) -> LLTokenizer:
    """Return a tokenizer whose tokens are single bytes, and the special tokens and token ids that the grammar names.
    The grammar checker compiles with it, because it does not know the model's tokenizer.
    """
    ids = [int(number) for listed in _IDS.findall(grammar) for number in re.findall(r"\d{1,9}", listed)]
    largest = max((number for number in ids if number <= _MAX_ID), default=0)
    return _cached_tokenizer(tuple(sorted(set(_NAMES.findall(grammar)))[:_MAX_NAMES]), largest)


@lru_cache(4)
def _cached_tokenizer(names: tuple[str, ...], largest: int) -> LLTokenizer:
    special = [b"<end>", *(name.encode() for name in names)]
    return byte_tokenizer(special, [_END], max(_END + len(special), largest + 1))


class _Bytes:
    """A vocabulary of the 256 bytes and of special tokens, in the form that llguidance requires of a tokenizer.
    `byte_tokenizer` makes an LLTokenizer of it.
    """

    bos_token_id = None

    def __init__(self, special: Sequence[bytes], eos: Sequence[int], vocab_size: int) -> None:
        self.eos_token_id = eos[0]
        self.special_token_ids = list(range(256, 256 + len(special)))
        self.tokens = [bytes([byte]) for byte in range(256)] + list(special)
        self.tokens += [b""] * (vocab_size - len(self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


# Maximum bytes for checks, in addition to the process's memory at its start. The largest useful grammars take 50 MB.
MAX_MEMORY = 512 * 1024 * 1024


def main() -> None:
    """The main program of the worker process: check grammars for the parent process until that process exits."""
    with stack(CHECK_STACK):
        answer_questions(_prepare, MAX_MEMORY)


def _prepare() -> Answer:
    complaint('start: ""')  # one-time work of the library is done before the first check is timed
    return _answer


def _answer(question: dict[str, Any], data: bytes) -> dict[str, Any]:
    try:
        return {"error": complaint(question["grammar"])}
    except BaseException as error:  # a panic of the library is not an Exception
        return {"error": shortened_message(f"the compiler fails: {error}")}


if __name__ == "__main__":
    main()
