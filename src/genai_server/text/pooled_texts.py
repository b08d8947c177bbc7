"""The token ids of texts that a model makes vectors of, or of pairs that it scores, within its limits."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from genai_server.errors import InvalidField, PromptTooLong
from genai_server.generation import PooledText
from genai_server.pooling_model import PoolingModel
from genai_server.quoted_values import quoted
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.special_tokens import SpecialTokenGuard, blaming
from genai_server.text.tokenizer import Tokenizer

CUT_BY = "truncate_prompt_tokens"
# Most tokens of all texts of a request together. A query counts with each of its documents, so that a short body could
# otherwise make any number.
MOST_TOKENS = 1024 * 1024
# No text has it: it stands for a document, to see what comes after one.
_DOCUMENT = "\U0010fffd"


class TextLimit(Struct, frozen=True):
    """How long a text may be, with all special tokens around it."""

    num_tokens: int
    # What sets this limit.
    source: str
    # Longer texts are cut to so many tokens; None refuses those beyond `num_tokens`.
    cut_to: int | None = None
    # Most tokens of a document beside a query; the rest is cut off.
    document: int | None = None
    # What a request says to have its texts cut to this length.
    remedy: str = f"{CUT_BY}: -1"

    @property
    def most(self) -> int | None:
        """Where texts are cut; None where they are not."""
        return None if self.cut_to is None else min(self.cut_to, self.num_tokens)


class EncodedText(NamedTuple):
    """A text for the engine."""

    tokens: list[int]
    about: PooledText


class Pair(NamedTuple):
    """A query and a document, with their places in the body, for errors."""

    query: str
    document: str
    query_place: str = "query"
    document_place: str = "documents"


class PooledTexts:
    """Encodes texts and pairs for one model. Each method takes long: for a thread."""

    def __init__(self, tokenizer: Tokenizer, writer: PromptWriter, model: PoolingModel) -> None:
        self._tokenizer = tokenizer
        # Of rerankers that are decoders.
        self._writer = writer
        self._model = model
        self._guard = SpecialTokenGuard(tokenizer.special_tokens)

    def encode(
        self, inputs: Sequence[str | list[int]], limit: TextLimit, *, prompt: str = "", param: str = "input"
    ) -> list[EncodedText]:
        """Texts, each after `prompt`, and token ids, which are taken as they are.

        Special tokens in a text are read as such. Raises InvalidField and PromptTooLong, naming `param`.
        """
        with blaming(param):
            texts = [[prompt + given] for given in inputs if isinstance(given, str)]
            for (text,) in texts:
                text.encode()
        encoded = iter(self._tokenizer.encode_each(texts))
        before, after = self._tokenizer.frame
        if texts:
            _check_room(limit, len(before) + len(after), 1)
        num_left_out = len(before) + len(self._tokenizer.encode(prompt)) if prompt else 0
        found = []
        for number, given in enumerate(inputs):
            place = param if len(inputs) == 1 else f"{param}[{number}]"
            if isinstance(given, str):
                tokens = [*before, *_cut(next(encoded), limit.most, len(before) + len(after)), *after]
                left_out = min(num_left_out, len(tokens) - 1)
            else:
                tokens, left_out = _cut(given, limit.most, 0), 0
            _check_length(len(tokens), limit, place)
            found.append(EncodedText(tokens, PooledText(len(tokens), 0, left_out)))
        _check_total(sum(text.about.num_tokens for text in found), param)
        return found

    def encode_pairs(
        self, pairs: Sequence[Pair], limit: TextLimit, *, instruction: str | None = None, param: str = "documents"
    ) -> list[EncodedText]:
        """Pairs of a query and a document. Special tokens in them are plain text.

        `param` is the field of the documents. Raises InvalidField and PromptTooLong.
        """
        queries = {pair.query: pair.query_place for pair in reversed(pairs)}
        for text, place in (*queries.items(), *((pair.document, pair.document_place) for pair in pairs)):
            with blaming(place):
                text.encode()
        if self._model.true_token is not None:
            return self._written(pairs, queries, limit, instruction, param)
        if instruction is not None:
            raise InvalidField("instruction cannot be given: this model reads none", param="instruction")
        pieces = [self._guard.plain(text).pieces for text in (*queries, *(pair.document for pair in pairs))]
        encoded = self._tokenizer.encode_each(pieces)
        of_query = dict(zip(queries, encoded, strict=False))
        num_around = len(self._tokenizer.framed_pair([], [])[0])
        _check_room(limit, num_around, 2)
        _check_queries({queries[query]: num_around + len(tokens) for query, tokens in of_query.items()}, limit)
        found = []
        total = 0
        for pair, document in zip(pairs, encoded[len(queries) :], strict=True):
            first, last = of_query[pair.query], document[: limit.document]
            if limit.most is not None:
                first, last = _cut_pair(first, last, limit.most - num_around)
            total += num_around + len(first) + len(last)
            _check_length(num_around + len(first) + len(last), limit, pair.document_place)
            _check_total(total, param)
            tokens, begins = self._tokenizer.framed_pair(first, last)
            second = begins if self._model.has_types else 0
            found.append(EncodedText(tokens, PooledText(len(tokens), second)))
        return found

    def _written(
        self,
        pairs: Sequence[Pair],
        queries: Mapping[str, str],
        limit: TextLimit,
        instruction: str | None,
        param: str,
    ) -> list[EncodedText]:
        """Pairs as prompts of a decoder. What comes after the document is never cut off."""
        write = self._template(instruction, param)
        around = self._tokenizer.encode(*write("", ""))
        _check_room(limit, len(around), 2)
        # Before the prompts are written, each of which has its query.
        alone = self._tokenizer.encode_each([self._guard.plain(query).pieces for query in queries])
        before = {query: len(around) + len(tokens) for query, tokens in zip(queries, alone, strict=True)}
        _check_queries({queries[query]: num_tokens for query, num_tokens in before.items()}, limit)
        _check_total(sum(before[pair.query] for pair in pairs), param)
        documents = [pair.document for pair in pairs]
        if limit.document is not None:
            documents = [self._shortened(document, limit.document) for document in documents]
        encoded = self._tokenizer.encode_each(
            [write(pair.query, document) for pair, document in zip(pairs, documents, strict=True)]
        )
        # By their queries, which some templates have after the documents.
        ends: dict[str, list[int]] = {}
        found = []
        for tokens, pair in zip(encoded, pairs, strict=True):
            if limit.most is not None and len(tokens) > limit.most:
                if (end := ends.get(pair.query)) is None:
                    end = ends[pair.query] = self._after_document(write(pair.query, _DOCUMENT))
                tokens = [*_cut(tokens, limit.most, len(end)), *end]
            _check_length(len(tokens), limit, pair.document_place)
            found.append(EncodedText(tokens, PooledText(len(tokens))))
        _check_total(sum(text.about.num_tokens for text in found), param)
        return found

    def _after_document(self, pieces: Sequence[str]) -> list[int]:
        """The tokens that follow _DOCUMENT in a prompt, in whose pieces no special token of a request is whole."""
        found: list[str] = []
        for piece in reversed(pieces):
            _, document, rest = piece.rpartition(_DOCUMENT)
            found.insert(0, rest)
            if document:
                break
        return self._tokenizer.encode(*found)

    def _template(self, instruction: str | None, param: str) -> Callable[[str, str], list[str]]:
        """Gives the pieces of a pair's prompt, or raises InvalidField for what the template refuses."""
        system = [] if instruction is None else [{"role": "system", "content": instruction}]

        def write(query: str, document: str) -> list[str]:
            pair = [{"role": "query", "content": query}, {"role": "document", "content": document}]
            try:
                return self._writer.write([*system, *pair], None, None).pieces
            except InvalidField as error:  # it names messages, which the request does not have
                raise InvalidField(error.message, param=param) from None

        return write

    def _shortened(self, document: str, most: int) -> str:
        """The beginning of a document that has at most so many tokens."""
        tokens = self._tokenizer.encode(*self._guard.plain(document).pieces)
        return document if len(tokens) <= most else self._tokenizer.decode(tokens[:most]).rstrip("\ufffd")


def named_prompt(model: PoolingModel, name: str | None) -> str:
    """The text before a text by its name, or the model's default one. Raises InvalidField."""
    name = model.default_prompt if name is None else name
    if name is None:
        return ""
    if name not in model.prompts:
        known = ", ".join(map(quoted, model.prompts)) or "none"
        raise InvalidField(
            f"prompt_name must be the name of one of the model's prompts: {known}; given {quoted(name)}",
            param="prompt_name",
        )
    return model.prompts[name]


def _cut(tokens: list[int], most: int | None, num_around: int) -> list[int]:
    return tokens if most is None else tokens[: max(0, most - num_around)]


def _cut_pair(first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
    """Both texts, of which the longer one is cut first, as Hugging Face's tokenizers do."""
    shorter = min(len(first), len(second))
    longer = max(shorter, most - shorter)
    if shorter + longer > most:
        shorter, longer = most // 2, most - most // 2
    if len(first) > len(second):
        return first[:longer], second[:shorter]
    return first[:shorter], second[:longer]


def _check_room(limit: TextLimit, num_around: int, num_texts: int) -> None:
    """Raises InvalidField if less than a token of each text would be left between the tokens around them."""
    least = num_around + num_texts
    if limit.most is not None and limit.most < least:
        raise InvalidField(
            f"{CUT_BY} must be at least {least}: {num_around} tokens are around what is read; given {limit.most}",
            param=CUT_BY,
        )


def _check_queries(num_tokens: Mapping[str, int], limit: TextLimit) -> None:
    """Raises PromptTooLong for a query, given by its place, that leaves no room for any document."""
    for place, number in num_tokens.items():
        if limit.most is None:
            _check_length(number, limit, place)


def _check_total(num_tokens: int, param: str) -> None:
    """Raises InvalidField for more tokens than a request may have."""
    if num_tokens > MOST_TOKENS:
        raise InvalidField(
            f"{param} must make at most {MOST_TOKENS} tokens in all, where a query counts with each document; given "
            f"at least {num_tokens}",
            param=param,
        )


def _check_length(num_tokens: int, limit: TextLimit, place: str) -> None:
    if not num_tokens:
        raise InvalidField(f"{place} makes no tokens with this model", param=place)
    if num_tokens > limit.num_tokens:
        raise PromptTooLong(
            f"{place} makes {num_tokens} tokens, but this model reads at most {limit.num_tokens} ({limit.source}); "
            f"{limit.remedy} cuts texts to this length",
            param=place,
        )
