"""Encodes texts to embed, or pairs of query and document to score, within a model's limits."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from genai_server.errors import AsIs, InvalidField, PromptTooLong, quoted
from genai_server.messages.generation_request import PooledText
from genai_server.model_files.pooling_model import PoolingModel
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.prompts.special_tokens import SpecialTokenGuard, as_field_errors
from genai_server.text.tokenizer import Tokenizer

TRUNCATION_FIELD = "truncate_prompt_tokens"
# How requests of most APIs ask for truncation to the model's limit.
TRUNCATION = f"{TRUNCATION_FIELD}: -1"
# Total tokens of a request's texts. A query counts once for each document, so a short body could otherwise produce any
# number.
MAX_TOKENS = 1024 * 1024
# A private character that represents a document, to determine what follows documents in a template.
_DOCUMENT = "\U0010fffd"


class TextLimit(Struct, frozen=True):
    """The maximum length of a text, including special tokens."""

    num_tokens: int
    # The source of this limit.
    source: str
    # Tokens to truncate longer texts to; None refuses texts beyond `num_tokens`.
    cut_to: int | None = None
    # Tokens to truncate documents to, in addition to a query.
    document: int | None = None
    # How a request asks for truncation to this length; error messages suggest it.
    remedy: str = TRUNCATION

    @property
    def truncate_to(self) -> int | None:
        """The number of tokens to truncate texts to; None if texts are not truncated."""
        return None if self.cut_to is None else min(self.cut_to, self.num_tokens)


class EncodedText(NamedTuple):
    """The tokens of one text, or of a pair of query and document, and what the engine must know to compute its vector
    or score.
    """

    tokens: list[int]
    about: PooledText


class Pair(NamedTuple):
    """A query and a document to score, with the paths of both in the request's body for error messages."""

    query: str
    document: str
    query_path: str = "query"
    document_path: str = "documents"


class PooledTexts:
    """Encodes texts and pairs for one embedding or reranking model. All methods are slow, so call them in a
    thread.
    """

    def __init__(self, tokenizer: Tokenizer, writer: PromptWriter, model: PoolingModel) -> None:
        self._tokenizer = tokenizer
        # Only used by rerankers that are decoders.
        self._writer = writer
        self._model = model
        self._guard = SpecialTokenGuard(tokenizer.special_tokens)

    def encode(
        self, inputs: Sequence[str | list[int]], limit: TextLimit, *, prompt: str = "", param: str = "input"
    ) -> list[EncodedText]:
        """Encode texts, each prefixed with `prompt`. Inputs that are token ids are used unchanged.

        Special tokens in texts are encoded as special tokens. Raises InvalidField for texts without tokens or with
        invalid Unicode, for a limit without room for a text, and for too many tokens in total, and PromptTooLong for a
        text beyond the limit. The errors name `param`.
        """
        with as_field_errors(param):
            texts = [[prompt + value] for value in inputs if isinstance(value, str)]
            for (text,) in texts:
                text.encode()
        encoded = iter(self._tokenizer.encode_each(texts))
        before, after = self._tokenizer.frame
        if texts:
            _check_truncation(limit, len(before) + len(after), 1)
        num_left_out = len(before) + len(self._tokenizer.encode(prompt)) if prompt else 0
        results = []
        for number, value in enumerate(inputs):
            path = param if len(inputs) == 1 else f"{param}[{number}]"
            if isinstance(value, str):
                tokens = [*before, *_cut(next(encoded), limit.truncate_to, len(before) + len(after)), *after]
                left_out = min(num_left_out, len(tokens) - 1)
            else:
                tokens, left_out = _cut(value, limit.truncate_to, 0), 0
            _check_length(len(tokens), limit, path)
            results.append(EncodedText(tokens, PooledText(len(tokens), 0, left_out)))
        _check_total(sum(text.about.num_tokens for text in results), param)
        return results

    def encode_pairs(
        self, pairs: Sequence[Pair], limit: TextLimit, *, instruction: str | None = None, param: str = "documents"
    ) -> list[EncodedText]:
        """Encode pairs of query and document. Special tokens in queries and documents are encoded as plain text.

        `instruction` is a system message for rerankers that are decoders. `param` is the name of the documents' field.
        Raises InvalidField for texts that cannot be encoded and too many tokens in total, and PromptTooLong for a pair
        beyond the limit.
        """
        queries = {pair.query: pair.query_path for pair in reversed(pairs)}
        for text, path in (*queries.items(), *((pair.document, pair.document_path) for pair in pairs)):
            with as_field_errors(path):
                text.encode()
        if self._model.true_token is not None:
            return self._written(pairs, queries, limit, instruction, param)
        if instruction is not None:
            raise InvalidField("instruction", "is not supported by this model")
        pieces = [self._guard.plain(text).pieces for text in (*queries, *(pair.document for pair in pairs))]
        encoded = self._tokenizer.encode_each(pieces)
        of_query = dict(zip(queries, encoded, strict=False))
        num_around = len(self._tokenizer.framed_pair([], [])[0])
        _check_truncation(limit, num_around, 2)
        _check_queries({queries[query]: num_around + len(tokens) for query, tokens in of_query.items()}, limit)
        results = []
        total = 0
        for pair, document in zip(pairs, encoded[len(queries) :], strict=True):
            first, last = of_query[pair.query], document[: limit.document]
            if limit.truncate_to is not None:
                first, last = _cut_pair(first, last, limit.truncate_to - num_around)
            total += num_around + len(first) + len(last)
            _check_length(num_around + len(first) + len(last), limit, pair.document_path)
            _check_total(total, param)
            tokens, start_of_second = self._tokenizer.framed_pair(first, last)
            second = start_of_second if self._model.has_types else 0
            results.append(EncodedText(tokens, PooledText(len(tokens), second)))
        return results

    def _written(
        self,
        pairs: Sequence[Pair],
        queries: Mapping[str, str],
        limit: TextLimit,
        instruction: str | None,
        param: str,
    ) -> list[EncodedText]:
        """Encode pairs as prompts of a reranker that is a decoder. Text after the document is never truncated.

        `queries` maps each query to the path of its field, for error messages. `instruction` is the system message;
        None for a prompt without one. Raises InvalidField and PromptTooLong.
        """
        write = self._template(instruction, param)
        around = self._tokenizer.encode(*write("", ""))
        _check_truncation(limit, len(around), 2)
        # Check the queries before rendering the prompts, each of which contains its query.
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
        # Keyed by query, because some templates place the query after the document.
        ends: dict[str, list[int]] = {}
        results = []
        for tokens, pair in zip(encoded, pairs, strict=True):
            if limit.truncate_to is not None and len(tokens) > limit.truncate_to:
                if (end := ends.get(pair.query)) is None:
                    end = ends[pair.query] = self._after_document(write(pair.query, _DOCUMENT))
                tokens = [*_cut(tokens, limit.truncate_to, len(end)), *end]
            _check_length(len(tokens), limit, pair.document_path)
            results.append(EncodedText(tokens, PooledText(len(tokens))))
        _check_total(sum(text.about.num_tokens for text in results), param)
        return results

    def _after_document(self, pieces: Sequence[str]) -> list[int]:
        """Return the tokens that follow the placeholder _DOCUMENT in a prompt, given as pieces of text.

        The pieces after the placeholder contain no special tokens of the request.
        """
        parts: list[str] = []
        for piece in reversed(pieces):
            _, document, after = piece.rpartition(_DOCUMENT)
            parts.insert(0, after)
            if document:
                break
        return self._tokenizer.encode(*parts)

    def _template(self, instruction: str | None, param: str) -> Callable[[str, str], list[str]]:
        """Return a function that renders the prompt for a query and a document as pieces of text.

        The function raises InvalidField, naming `param`, if the chat template fails.
        """
        system = [] if instruction is None else [{"role": "system", "content": instruction}]

        def write(query: str, document: str) -> list[str]:
            pair = [{"role": "query", "content": query}, {"role": "document", "content": document}]
            try:
                return self._writer.write([*system, *pair], None, None).prompt.pieces
            except InvalidField as error:  # it names messages, which the request does not have
                raise error.at(param) from None

        return write

    def _shortened(self, document: str, max_tokens: int) -> str:
        """Truncate a document to `max_tokens` tokens and return its text."""
        tokens = self._tokenizer.encode(*self._guard.plain(document).pieces)
        return document if len(tokens) <= max_tokens else self._tokenizer.decode(tokens[:max_tokens]).rstrip("\ufffd")


def named_prompt(model: PoolingModel, name: str | None) -> str:
    """Return the model's prompt with this name; without a name, the model's default prompt or "".

    Raises InvalidField for an unknown name.
    """
    name = model.default_prompt if name is None else name
    if name is None:
        return ""
    if name not in model.prompts:
        names = ", ".join(map(quoted, model.prompts)) or "none"
        raise InvalidField("prompt_name", f"must be the name of one of the model's prompts: {names}", given=name)
    return model.prompts[name]


def _cut(tokens: list[int], max_tokens: int | None, num_around: int) -> list[int]:
    return tokens if max_tokens is None else tokens[: max(0, max_tokens - num_around)]


def _cut_pair(first: list[int], second: list[int], max_tokens: int) -> tuple[list[int], list[int]]:
    """Truncate two lists of tokens to `max_tokens` tokens in total, the longer one first, as Hugging Face's tokenizers
    do.
    """
    shorter = min(len(first), len(second))
    longer = max(shorter, max_tokens - shorter)
    if shorter + longer > max_tokens:
        shorter, longer = max_tokens // 2, max_tokens - max_tokens // 2
    if len(first) > len(second):
        return first[:longer], second[:shorter]
    return first[:shorter], second[:longer]


def _check_truncation(limit: TextLimit, num_around: int, num_texts: int) -> None:
    """Raise InvalidField if truncation to the limit would not leave at least one token of each of `num_texts` texts.

    `num_around` is the number of tokens that always surround the texts.
    """
    required = num_around + num_texts
    if limit.truncate_to is not None and limit.truncate_to < required:
        raise InvalidField(
            TRUNCATION_FIELD,
            f"must be at least {required}, including {num_around} special tokens",
            given=limit.truncate_to,
        )


def _check_queries(num_tokens: Mapping[str, int], limit: TextLimit) -> None:
    """Raise PromptTooLong if a query alone exceeds the limit. With truncation no query is too long.

    `num_tokens` has the number of tokens of each query with the text around it, keyed by the query's path in the body.
    """
    for path, number in num_tokens.items():
        if limit.truncate_to is None:
            _check_length(number, limit, path)


def _check_total(num_tokens: int, param: str) -> None:
    """Raise InvalidField for the field `param` if `num_tokens`, the number of tokens of a whole request, exceeds
    MAX_TOKENS.
    """
    if num_tokens > MAX_TOKENS:
        raise InvalidField(
            param,
            "may have at most",
            limit=f"{MAX_TOKENS} tokens in total",
            limited_by="counting a query with each document",
            given=AsIs(f"at least {num_tokens}"),
        )


def _check_length(num_tokens: int, limit: TextLimit, path: str) -> None:
    if not num_tokens:
        raise InvalidField(path, "encodes to zero tokens")
    if num_tokens > limit.num_tokens:
        raise PromptTooLong(
            path,
            f"has too many tokens ({limit.remedy} truncates texts): it may have at most",
            limit=limit.num_tokens,
            limited_by=limit.source,
            given=num_tokens,
        )
