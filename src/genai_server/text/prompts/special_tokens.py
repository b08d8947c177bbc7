"""Keeps special tokens in a request's texts plain text (`SpecialTokenGuard`), so that a client cannot, for example,
begin a turn of the system by sending the token that begins one.

Before a chat template is rendered, a few characters are replaced by lone surrogates in all texts of the request. The
characters are chosen so that every special token contains one of them, and valid text contains no lone surrogates. So
each special token in the rendered text comes from the template. Afterwards the characters are restored, and the text is
cut within each special token that appears only now, so that no piece contains one. It does not matter what the template
did to the texts in between: trim them, change their case, write them as JSON or concatenate them.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from genai_server.errors import InvalidField

# The first 128 surrogates are halves of characters that are not in use. If a template writes a text's escapes (Python's
# `str` of a list, JSON in ASCII), they can therefore be distinguished from those of an emoji.
_SURROGATES = range(0xDB80, 0xE000)


class Prompt(NamedTuple):
    """The text of a prompt, in pieces that the tokenizer encodes one by one.

    `num_special` is the number of special tokens in it that come from the template and are encoded as such. Special
    tokens of the request's texts are split over pieces, so they are encoded as plain text.
    """

    pieces: list[str]
    num_special: int

    @property
    def text(self) -> str:
        """The complete text of the prompt."""
        return "".join(self.pieces)


class SpecialTokenGuard:
    """Distinguishes the special tokens of a chat template from special tokens in a request's texts, which stay plain
    text.

    Use: `cover` the texts of the request, render the template with them, and `uncover` the output. `tokens` are the
    texts of all special tokens, and `constants` the texts in the template's source. The constants show whether the
    template assembles a special token around a variable, as in `'<|' + name + '|>'`.
    """

    def __init__(self, tokens: Collection[str], constants: Collection[str] = ()) -> None:
        self._tokens = sorted(filter(None, tokens), key=len, reverse=True)
        self._pattern = re.compile(_longest_of(self._tokens) or "(?!)")
        self._keys = _key_characters(self._tokens, "".join(self._pattern.sub("", text) for text in constants))
        remaining = {character for token in self._tokens for character in token}.difference(self._keys)
        # The keys come first, should there ever be more characters than surrogates.
        self._covers = dict(zip([*self._keys, *sorted(remaining)], map(chr, _SURROGATES), strict=False))
        self._heads: tuple[str, ...] = ()
        self._tails: tuple[str, ...] = ()
        if self._builds_tokens(constants):
            self._heads = tuple(part for part in _heads(self._tokens) if not self._has_key(part))
            self._tails = tuple(part for part in _tails(self._tokens) if not self._has_key(part))

    def cover(self, value: Any, param: str) -> Any:
        """Return a copy of a JSON value in whose texts, including field names, characters are replaced so that no
        special token remains.

        `uncover` restores the characters. Errors name the field `param`: InvalidField is raised for a text that is not
        valid Unicode and for a value that is nested too deeply.
        """
        with as_field_errors(param):
            return self._covered(value)

    def cover_messages(self, messages: Iterable[Mapping[str, Any]], param: str) -> list[dict[str, Any]]:
        """Return copies of messages in whose texts characters are replaced as in `cover`, so that no special token
        remains.

        A role, which templates compare, is changed less than other texts: its first and last characters are not
        replaced in addition. Errors name the field `param`: InvalidField is raised for a text that is not valid Unicode
        and for too deep nesting.
        """
        with as_field_errors(param):
            return [
                {
                    name: self._covered_keys(value) if name == "role" else self._covered(value)
                    for name, value in message.items()
                }
                for message in messages
            ]

    def uncover(self, rendered: str) -> Prompt:
        """Restore the characters that `cover` has replaced, in the output of a template, and return the output as a
        prompt.

        Only special tokens that come from the template are encoded as special tokens.
        """
        if "\\ud" in rendered:
            for cover in self._covers.values():
                rendered = rendered.replace(ascii(cover)[1:-1], cover)
        genuine = [match.span() for match in self._pattern.finditer(rendered)]
        for character, cover in self._covers.items():
            rendered = rendered.replace(cover, character)
        return Prompt(self._cut(rendered, genuine), len(genuine))

    def plain(self, text: str) -> Prompt:
        """Return a prompt for a text that contains no template's output: all special tokens in it are encoded as plain
        text.
        """
        return Prompt(self._cut(text, []), 0)

    def end(self, prompt: Prompt, position: int) -> Prompt:
        """Return the end of a prompt as a prompt: its text from the character index `position` on.

        No special token may extend across this position.
        """
        pieces = []
        for piece in prompt.pieces:
            if position < len(piece):
                pieces.append(piece[max(0, position) :])
            position -= len(piece)
        return Prompt(pieces, sum(len(self._pattern.findall(piece)) for piece in pieces))

    def _covered(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._covered_ends(self._covered_keys(value))
        if isinstance(value, Mapping):
            # The ends of field names are kept because templates look up fields by name.
            return {self._covered_keys(name): self._covered(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._covered(inner) for inner in value]
        return value

    def _covered_keys(self, text: str) -> str:
        if not text.isascii():
            text.encode()  # raises UnicodeEncodeError
        for key in self._keys:
            text = text.replace(key, self._covers[key])
        return text

    def _covered_ends(self, text: str) -> str:
        """Return a text with its first and last character replaced, where the template could complete them to a special
        token.
        """
        if not self._heads or not text:
            return text
        if text.endswith(self._heads) or any(text in token for token in self._tokens):
            text = text[:-1] + self._covers.get(text[-1], text[-1])
        if text.startswith(self._tails):
            text = self._covers.get(text[0], text[0]) + text[1:]
        return text

    def _cut(self, text: str, genuine: list[tuple[int, int]]) -> list[str]:
        """Split a text into pieces that contain no special tokens, except those that come from the template.

        `genuine` has the positions (start and end) of these genuine special tokens.
        """
        genuine_spans = set(genuine)
        inner = {position for start, end in genuine for position in range(start + 1, end)}
        pieces, todo = [], [(0, len(text))]
        while todo:
            start, end = todo.pop()
            spans = (match.span() for match in self._pattern.finditer(text, start, end))
            # A token of one character cannot be split; the codec finds it when it encodes the pieces.
            forged = next((span for span in spans if span not in genuine_spans and span[1] - span[0] > 1), None)
            if forged is None:
                pieces.append(text[start:end])
            else:
                cut = next(position for position in range(forged[0] + 1, forged[1]) if position not in inner)
                todo += [(cut, end), (start, cut)]
        return pieces

    def _builds_tokens(self, constants: Collection[str]) -> bool:
        """Whether the template may assemble a special token around a variable, as in `'<|' + name + '|>'`.

        This is assumed if one of the template's texts `constants` contains a part of a special token, but not the
        whole, with one of the characters that are replaced in texts.
        """
        heads = tuple(filter(self._has_key, _heads(self._tokens)))
        tails = tuple(filter(self._has_key, _tails(self._tokens)))
        joined = "\0".join(self._tokens)
        return any(
            text.endswith(heads) or text.startswith(tails) or (text in joined and text not in self._tokens)
            for text in filter(self._has_key, constants)
        )

    def _has_key(self, text: str) -> bool:
        return any(key in text for key in self._keys)


@contextmanager
def as_field_errors(param: str) -> Iterator[None]:
    """Context manager that converts errors of its block to InvalidField for the field `param`.

    It converts UnicodeEncodeError (a text that is not valid Unicode) and RecursionError (a value that is nested too
    deeply).
    """
    try:
        yield
    except UnicodeEncodeError:
        raise InvalidField(param, "must be valid Unicode; given a lone surrogate") from None
    except RecursionError:
        raise InvalidField(param, "is nested too deeply") from None


def _key_characters(tokens: Iterable[str], constants: str) -> list[str]:
    """Return a few characters such that each special token in `tokens` contains at least one of them.

    Characters that are rare in `constants`, the texts of the template, are preferred, because templates are unlikely to
    look for them.
    """
    remaining, keys = set(tokens), []
    while remaining:
        keys.append(
            min(
                {character for token in remaining for character in token},
                key=lambda c: (
                    c.isalnum() or c.isspace(),
                    constants.count(c),
                    -sum(c in token for token in remaining),
                    c,
                ),
            )
        )
        remaining = {token for token in remaining if keys[-1] not in token}
    return keys


def _longest_of(tokens: Collection[str]) -> str:
    """Return a regular expression that matches, at any position, the longest of the given special tokens.

    The alternatives share common beginnings (a trie). With one alternative for each of a thousand tokens, the search in
    a text full of their common beginning would take seconds.
    """
    suffixes: dict[str, list[str]] = {}
    for token in filter(None, tokens):
        suffixes.setdefault(token[0], []).append(token[1:])
    branches = "|".join(re.escape(first) + _longest_of(group) for first, group in suffixes.items())
    if "" in tokens:
        return f"(?:{branches})?" if branches else ""
    return f"(?:{branches})" if len(suffixes) > 1 else branches


def _heads(tokens: Iterable[str]) -> set[str]:
    return {token[:n] for token in tokens for n in range(1, len(token))}


def _tails(tokens: Iterable[str]) -> set[str]:
    return {token[n:] for token in tokens for n in range(1, len(token))}
