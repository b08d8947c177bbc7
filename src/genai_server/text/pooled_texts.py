"""Encodes the texts of embedding and reranking requests to tokens, within the model's limits.

`PooledTexts` encodes texts to embed, and pairs of query and document to score. `TextLimit` says how long a text may be
and whether longer texts are truncated. `named_prompt` finds a prompt that the model puts before texts.
"""

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
    """How long a text to embed, or a pair of texts to score, may be, including special tokens.

    `num_tokens` is the maximum number of tokens and `source` names what determines it, for error messages. `cut_to` is
    the number of tokens to which longer texts are truncated; if it is None, they are refused. `document` is the number
    of tokens to which a document is truncated before it is joined with its query, or None. `remedy` is the parameter
    with which a request asks for truncation; error messages suggest it.
    """

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
        """The number of tokens to which texts are truncated, at most `num_tokens`; None if texts are not truncated."""
        return None if self.cut_to is None else min(self.cut_to, self.num_tokens)


class EncodedText(NamedTuple):
    """The tokens of one text to embed, or of one pair of query and document to score, ready for the engine.

    `about` has what the engine must know besides: the number of tokens, where the second text begins, and how many
    tokens at the beginning do not count for the vector.
    """

    tokens: list[int]
    about: PooledText


class Pair(NamedTuple):
    """A query and a document to score, for PooledTexts.encode_pairs.

    `query_path` and `document_path` are their paths in the request's body, such as `documents[0]`, for error messages.
    """

    query: str
    document: str
    query_path: str = "query"
    document_path: str = "documents"


class PooledTexts:
    """Encodes texts, and pairs of query and document, for one embedding or reranking model. TextCodec creates it.

    All methods are slow, so they must be called in a thread (`TextCodec.encode_pooled`).
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
        """Encode texts to embed. Returns the tokens of each input in order.

        Strings get the prefix `prompt`, are truncated if `limit` says so, and may contain special tokens. Inputs that
        are lists of token ids are only truncated. Errors name the field `param`: InvalidField for a text without tokens
        or with invalid Unicode, for a limit that leaves no room for a text, and for too many tokens in total;
        PromptTooLong for a text that is longer than `limit` allows.
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
        """Encode pairs of query and document to score. Returns the tokens of each pair in order.

        Special tokens in queries and documents are encoded as plain text. `instruction` is a system message for
        rerankers that are decoders (generative models with a prompt); None for none. `param` is the field with the
        documents, for errors. Raises InvalidField for a text that cannot be encoded, for an instruction that the model
        does not support, and for too many tokens in total, and PromptTooLong for a pair that is longer than `limit`
        allows.
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
        """Encode pairs of query and document as prompts of a reranker that is a decoder (a generative model with a
        prompt).

        `queries` maps each query to the path of its field, for error messages. `instruction` is the system message;
        None for a prompt without one. If a prompt is truncated to `limit`, the document is cut and the text after it is
        kept. Raises InvalidField and PromptTooLong, which name the field of the query or document, or `param`.
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
        """Return the tokens of a prompt after its document. The prompt is given as pieces of text, with the character
        _DOCUMENT in place of the document.

        They are needed to truncate a document without the text after it.
        """
        parts: list[str] = []
        for piece in reversed(pieces):
            _, document, after = piece.rpartition(_DOCUMENT)
            parts.insert(0, after)
            if document:
                break
        return self._tokenizer.encode(*parts)

    def _template(self, instruction: str | None, param: str) -> Callable[[str, str], list[str]]:
        """Return a function that renders the prompt for a query and a document as pieces of text, with the model's chat
        template.

        `instruction` is the system message of the prompts; None for none. The function raises InvalidField, naming
        `param`, if the chat template fails.
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
        """Return the text of a document's first `max_tokens` tokens; the whole document if it has no more tokens."""
        tokens = self._tokenizer.encode(*self._guard.plain(document).pieces)
        return document if len(tokens) <= max_tokens else self._tokenizer.decode(tokens[:max_tokens]).rstrip("\ufffd")


def named_prompt(model: PoolingModel, name: str | None) -> str:
    """Return the text that an embedding model puts before texts for a purpose such as "query".

    `name` is the name of one of the model's prompts. If it is None, the model's default prompt is returned, or "" if
    there is none. Raises InvalidField for an unknown name.
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
    """Truncate two lists of tokens so that they have at most `max_tokens` tokens together. Returns the truncated lists.

    The longer list is cut first, as Hugging Face's tokenizers do.
    """
    shorter = min(len(first), len(second))
    longer = max(shorter, max_tokens - shorter)
    if shorter + longer > max_tokens:
        shorter, longer = max_tokens // 2, max_tokens - max_tokens // 2
    if len(first) > len(second):
        return first[:longer], second[:shorter]
    return first[:shorter], second[:longer]


def _check_truncation(limit: TextLimit, num_around: int, num_texts: int) -> None:
    """Check that truncation to the limit leaves at least one token of each of `num_texts` texts; else raise
    InvalidField.

    `num_around` is the number of special tokens that always surround the texts.
    """
    required = num_around + num_texts
    if limit.truncate_to is not None and limit.truncate_to < required:
        raise InvalidField(
            TRUNCATION_FIELD,
            f"must be at least {required}, including {num_around} special tokens",
            given=limit.truncate_to,
        )


def _check_queries(num_tokens: Mapping[str, int], limit: TextLimit) -> None:
    """Raise PromptTooLong if a query of a reranking request is too long even without a document.

    `num_tokens` has the number of tokens of each query with the text around it, keyed by the path of the query in the
    request's body. If `limit` truncates, no query is too long.
    """
    for path, number in num_tokens.items():
        if limit.truncate_to is None:
            _check_length(number, limit, path)


def _check_total(num_tokens: int, param: str) -> None:
    """Check the number of tokens of a whole request, `num_tokens`; raise InvalidField, naming `param`, above
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
