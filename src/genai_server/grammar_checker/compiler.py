"""llguidance's compiler with this server's limits: for the process that checks a grammar, and for the engine."""

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

# What may be spent on the lexer of a grammar. The library's own 1,000,000 lets one take 4 s and 170 MB, with this it is
# 0.5 s and 50 MB (2 cores), and a schema may have 1,200 dates.
_LEXER_FUEL = 300_000
# How ambiguous a grammar may become on its way. The library's own 2000 lets one take 0.25 s for each token, in which
# all streams stand still; with this it is 0.05 s (2 cores), and an object may have 200 optional properties.
_MOST_ITEMS = 1000
# Bytes of stack. The compiler calls itself for each rule that leads to another: with 8 MiB 2,700 of them end the
# process, with 2 MiB 650. What passes where a grammar is checked has four times as much in the engine.
CHECK_STACK = 2 * 1024 * 1024
ENGINE_STACK = 4 * CHECK_STACK
_LONGEST_MESSAGE = 500
_EXPRESSION_ERROR = re.compile(r"regex parse error:\n.*?^error: [^\n]*", re.MULTILINE | re.DOTALL)
# Answers that a check follows, and the tokens of each.
_WALKS, _STEPS = 3, 10
# Tokens that a grammar names: by id, and by text.
_IDS = re.compile(r"<\[([-^\d,\s]+)\]>")
_NAMES = re.compile(r"<[^<>\s\[\]]+>")
# The token that ends an answer, after those of the bytes.
_END = 256
_LARGEST_ID, _MOST_NAMES = 300_000, 1_000


def byte_tokenizer(special: Sequence[bytes], eos: Sequence[int], vocab_size: int) -> LLTokenizer:
    """Tokens are bytes; those from 256 on are special, and any without a text are empty."""
    return LLTokenizer(TokenizerWrapper(_Bytes(special, eos, vocab_size)), vocab_size, list(eos))


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher | str:
    """The grammar at its start with its first mask computed, or why it cannot be used. Python's lock is not held."""
    try:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
        # The first mask may take a second, too; what is learned for it comes along with each copy.
        matcher.compute_bitmask()
    except BaseException as error:  # a panic of the library is no Exception, and somebody waits
        return in_short(str(error))
    return reason(matcher) if matcher.is_error() else matcher


def reason(matcher: LLMatcher) -> str:
    """Why a matcher goes no further."""
    return in_short(matcher.get_error())


def in_short(words: str) -> str:
    """The library's words without what only its authors can read: of a panic it tells the whole stack."""
    return words.partition("<backtrace>")[0].removesuffix("<non-verbose/>").strip()[:_LONGEST_MESSAGE]


def complaint(grammar: str) -> str | None:
    """What the compiler says against a grammar, None if nothing.

    A sound one is followed for a few tokens, as an engine will follow it. What only shows with the tokens of a model is
    left to the engine.
    """
    matcher = compile_grammar(_stand_in(grammar), grammar)
    if isinstance(matcher, LLMatcher):
        _follow(matcher)
        return None
    wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
    if not wrong:
        return None
    # Around a regular expression it shows a grammar that nobody has written.
    expression = _EXPRESSION_ERROR.search(messages[0])
    return in_short(expression[0] if expression else messages[0])


@contextmanager
def stack(size: int) -> Iterator[None]:
    """Threads that are started within have so many bytes of stack."""
    before = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(before)


def _limits() -> LLParserLimits:
    return LLParserLimits(max_items_in_row=_MOST_ITEMS, initial_lexer_fuel=_LEXER_FUEL, verbose_errors=False)


def _follow(matcher: LLMatcher) -> None:
    """Draw the beginnings of some answers that go on for as long as they can; the same each time."""
    for seed in range(_WALKS):
        chance, answer = random.Random(seed), matcher.deep_copy()
        for _ in range(_STEPS):
            allowed = int.from_bytes(answer.compute_bitmask(), "little") & ~(1 << _END)
            if not allowed or answer.is_stopped():
                break
            tokens = [token for token in range(_END) if allowed >> token & 1]
            answer.consume_token(chance.choice(tokens or [allowed.bit_length() - 1]))


def _stand_in(grammar: str) -> LLTokenizer:
    """A tokenizer of bytes that has the special tokens which a grammar names, for those of a model are not known."""
    ids = [int(number) for listed in _IDS.findall(grammar) for number in re.findall(r"\d{1,9}", listed)]
    largest = max((number for number in ids if number <= _LARGEST_ID), default=0)
    return _stand_in_tokenizer(tuple(sorted(set(_NAMES.findall(grammar)))[:_MOST_NAMES]), largest)


@lru_cache(4)
def _stand_in_tokenizer(names: tuple[str, ...], largest: int) -> LLTokenizer:
    special = [b"<end>", *(name.encode() for name in names)]
    return byte_tokenizer(special, [_END], max(_END + len(special), largest + 1))


class _Bytes:
    """Bytes and special tokens as the library wants a tokenizer described."""

    bos_token_id = None

    def __init__(self, special: Sequence[bytes], eos: Sequence[int], vocab_size: int) -> None:
        self.eos_token_id = eos[0]
        self.special_token_ids = list(range(256, 256 + len(special)))
        self.tokens = [bytes([byte]) for byte in range(256)] + list(special)
        self.tokens += [b""] * (vocab_size - len(self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
