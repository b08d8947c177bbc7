"""Answers drawn at random from those that a grammar allows."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from genai_server.errors import InvalidField
from genai_server.grammar_checker.compiler import complaint
from genai_server.text.grammars import grammar

# Tokens that end strings, numbers and containers, so that drawn answers end.
_ENDING = [ord(char) for char in '"}],:)>']


def validate(built: str, *, param: str) -> None:
    """Check a grammar like the server, with the compiler in this process."""
    grammar.check_size(built, param=param)
    if (words := complaint(built)) is not None:
        raise InvalidField(param, f"cannot be used: {words}")


def followed(schema: dict[str, Any]) -> str:
    """The grammar of a schema, which is checked."""
    built = grammar.json_schema(schema)
    validate(built, param="response_format")
    return built


def assert_answers(built: str, good: Iterable[str], bad: Iterable[str]) -> None:
    """Check which texts are complete answers, and which are not."""
    assert [text for text in good if not fits(built, text)] == []
    assert [text for text in bad if fits(built, text)] == []


@cache
def byte_tokenizer() -> LLTokenizer:
    """A tokenizer whose tokens are bytes, with one more to end the answer."""
    return LLTokenizer("byte")


def tokenizer_with(path: Path, added: dict[str, bool]) -> tuple[LLTokenizer, dict[str, Any]]:
    """A tokenizer.json with additional tokens, mapped to whether they are special; also returns its contents."""
    content = json.loads(path.read_text(encoding="utf-8"))
    size = len(content["model"]["vocab"])
    for id, (text, special) in enumerate(added.items(), start=size):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        content["added_tokens"].append({"id": id, "content": text, "special": special, **flags})
    return LLTokenizer(json.dumps(content)), content


def matcher(tokenizer: LLTokenizer, built: str) -> LLMatcher:
    """A matcher at the start of an answer."""
    made = LLMatcher(tokenizer, built, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of answers: a tokenizer for the library, how a text is encoded, and the tokens that no text has."""

    tokenizer: LLTokenizer
    encode: Callable[[str], list[int]]
    opaque: dict[str, int]

    def allows(self, built: str, text: str) -> bool:
        """Whether a text is a complete answer."""
        state, tokens = matcher(self.tokenizer, built), self.encode(text)
        return state.validate_tokens(tokens) == len(tokens) and state.consume_tokens(tokens) and state.is_accepting()


def byte_vocabulary() -> Vocabulary:
    """Bytes, in which markers are text."""
    return Vocabulary(byte_tokenizer(), lambda text: list(text.encode()), {})


def fits(built: str, text: str) -> bool:
    """Whether a text is a complete answer; its markers are text."""
    return byte_vocabulary().allows(built, text)


def draw(built: str, seed: int, max_tokens: int = 2_000) -> str | None:
    """A complete answer of bytes, or None if it did not end."""
    tokenizer, choices = byte_tokenizer(), random.Random(seed)
    state, answer = matcher(tokenizer, built), bytearray()
    for _ in range(max_tokens):
        if state.is_stopped() or (state.is_accepting() and choices.random() < 0.5):
            return answer.decode()
        mask = state.compute_bitmask()
        allowed = [token for token in range(256) if mask[token // 8] >> token % 8 & 1]
        ending = [token for token in _ENDING if token in allowed]
        if not allowed:
            return answer.decode()
        answer.append(choices.choice(ending if ending and choices.random() < 0.5 else allowed))
        assert state.consume_token(answer[-1])
    return None
