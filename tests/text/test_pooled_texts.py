"""The token ids of texts to pool, and their limits."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField, PromptTooLong
from genai_server.messages.generation_request import PooledText
from genai_server.model_files.pooling_model import PoolingModel, Task
from genai_server.text import pooled_texts
from genai_server.text.codec import TextCodec, load_text_codec
from genai_server.text.pooled_texts import EncodedText, Pair, PooledTexts, TextLimit, named_prompt
from genai_server.text.prompts.chat_template import DEFAULT, ChatTemplate
from genai_server.text.prompts.prompt import PromptWriter
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer
from tests.running_server import ROOT
from tests.text import small_tokenizers

LIMIT = TextLimit(6, "the model's limit")
CUT = TextLimit(6, "the model's limit", cut_to=6)
CUT_TO_2 = TextLimit(6, "the model's limit", cut_to=2)
EMBEDDER = PoolingModel(Task.EMBED, "model.onnx", 6, 10, prompts={"query": "one "}, default_prompt="query")
RERANKER = PoolingModel(Task.RERANK, "model.onnx", 6, 10)


@pytest.fixture
def words(tmp_path: Path) -> PooledTexts:
    """[UNK] [CLS] [SEP] one two ##s are 0 to 5."""
    return PooledTexts(ModelTokenizer(small_tokenizers.words(tmp_path)), PromptWriter({}), RERANKER)


@pytest.mark.parametrize(
    ("text", "limit", "prompt", "tokens", "about"),
    [
        ("one two", LIMIT, "", [1, 3, 4, 2], PooledText(4)),
        ([3, 3], LIMIT, "", [3, 3], PooledText(2)),
        ("one [SEP]", LIMIT, "", [1, 3, 2, 2], PooledText(4)),
        ("two", LIMIT, "one ", [1, 3, 4, 2], PooledText(4, 0, 2)),
        ([3, 4, 3], LIMIT, "one ", [3, 4, 3], PooledText(3)),
        ("one two one two one", CUT, "", [1, 3, 4, 3, 4, 2], PooledText(6)),
        ([3] * 9, CUT, "", [3] * 6, PooledText(6)),
    ],
    ids=["a text", "ids", "its special tokens", "a prompt", "ids without it", "a text is cut inside", "ids are cut"],
)
def test_tokens_of_a_text_and_of_its_prompt_are_counted(
    words: PooledTexts, text: str | list[int], limit: TextLimit, prompt: str, tokens: list[int], about: PooledText
) -> None:
    assert words.encode([text], limit, prompt=prompt) == [EncodedText(tokens, about)]


def test_a_long_text_is_refused_with_the_limit(words: PooledTexts) -> None:
    with pytest.raises(PromptTooLong) as refused:
        words.encode(["one", "one two one two one"], LIMIT)
    assert refused.value.param == "input[1]"
    assert refused.value.message == (
        "input[1] has too many tokens (truncate_prompt_tokens: -1 truncates texts): it may have at most 6 "
        "(the model's limit); given 7"
    )


def test_texts_are_truncated_to_one_own_token_at_least(words: PooledTexts) -> None:
    assert words.encode([[3, 4]], CUT_TO_2)[0].tokens == [3, 4]
    with pytest.raises(InvalidField, match="must be at least 3, including 2 special tokens; given 2") as refused:
        words.encode(["one"], CUT_TO_2)
    assert refused.value.param == "truncate_prompt_tokens"
    with pytest.raises(InvalidField, match="must be at least 11, including 9 special tokens; given 2"):
        decoder_texts().encode_pairs([Pair("one", "two")], CUT_TO_2)


def test_text_that_is_not_unicode_is_refused(words: PooledTexts) -> None:
    with pytest.raises(InvalidField) as refused:
        words.encode(["\ud800"], LIMIT)
    assert refused.value.param == "input"


def test_special_tokens_of_a_pair_are_text(words: PooledTexts) -> None:
    (pair,) = words.encode_pairs([Pair("one", "[SEP]")], TextLimit(20, ""))
    assert 2 not in pair.tokens[3:-1]


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    codec = load_text_codec(ROOT / "models" / "demo-reranker", "cpu")

    def cut(query: str, document: str, most: int) -> tuple[int, int]:
        """The remaining tokens of both."""
        texts = codec._pooled_texts
        assert texts is not None
        limit = TextLimit(256, "", cut_to=most)
        (pair,) = texts.encode_pairs([Pair(query, document)], limit)
        return pair.about.second - 2, pair.about.num_tokens - pair.about.second - 1

    assert cut("rain rain", "rain rain rain", 256) == (2, 3)
    assert cut("rain rain", "rain " * 50, 13) == (2, 8)
    assert cut("rain " * 50, "rain rain", 13) == (8, 2)
    assert cut("rain " * 50, "rain " * 60, 14) == (5, 6)
    assert cut("rain " * 50, "rain " * 60, 5) == (1, 1)
    with pytest.raises(InvalidField, match="must be at least 5, including 3 special tokens; given 4"):
        cut("rain " * 50, "rain " * 60, 4)
    codec.close()


def test_an_instruction_is_refused_where_none_is_read(words: PooledTexts) -> None:
    with pytest.raises(InvalidField, match="instruction is not supported by this model"):
        words.encode_pairs([Pair("one", "two")], LIMIT, instruction="x")


TEMPLATE = "S:{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}END"


def decoder_texts(template: str = TEMPLATE) -> PooledTexts:
    model = PoolingModel(Task.RERANK, "model.onnx", 100, 257, true_token=1)
    return PooledTexts(ByteTokenizer(), PromptWriter({DEFAULT: ChatTemplate(template)}), model)


QUERY_LAST = "{{ messages[1].content }}|{{ messages[0].content }}END"


@pytest.mark.parametrize(
    ("template", "pair", "limits", "instruction", "written"),
    [
        (TEMPLATE, Pair("q", "d"), {}, "I", b"S:sI;qq;dd;END"),
        (TEMPLATE, Pair("q", "0123456789"), {"cut_to": 12}, None, b"S:qq;d01;END"),
        (TEMPLATE, Pair("q", "0123456789"), {"document": 3}, None, b"S:qq;d012;END"),
        (QUERY_LAST, Pair("q", "0123456789"), {"cut_to": 9}, None, b"0123|qEND"),
        (QUERY_LAST, Pair("qq", "0123456789"), {"cut_to": 9}, None, b"012|qqEND"),
        (QUERY_LAST, Pair("q", "01"), {"cut_to": 9}, None, b"01|qEND"),
    ],
)
def test_a_decoder_reads_a_pair_of_which_only_the_document_is_cut(
    template: str, pair: Pair, limits: dict[str, Any], instruction: str | None, written: bytes
) -> None:
    (found,) = decoder_texts(template).encode_pairs([pair], TextLimit(100, "", **limits), instruction=instruction)
    assert bytes(found.tokens) == written


def test_refusal_of_the_template_names_the_documents() -> None:
    refusing = "{% if messages[1].content == 'd' %}{{ raise_exception('no d') }}{% endif %}" + TEMPLATE
    with pytest.raises(InvalidField, match="no d") as refused:
        decoder_texts(refusing).encode_pairs([Pair("q", "d")], TextLimit(100, ""))
    assert refused.value.param == "documents"


@pytest.mark.parametrize("is_decoder", [True, False])
def test_a_query_that_is_too_long_is_named(words: PooledTexts, is_decoder: bool) -> None:
    texts = decoder_texts() if is_decoder else words
    pairs = [Pair("one", "two", "text_1[0]", "text_2[0]"), Pair("one " * 40, "two", "text_1[1]", "text_2[1]")]
    with pytest.raises(PromptTooLong) as refused:
        texts.encode_pairs(pairs, TextLimit(30, "the model's limit"), param="text_2")
    assert refused.value.param == "text_1[1]"


@pytest.mark.parametrize("is_decoder", [True, False])
def test_total_of_queries_and_documents_is_limited_early(
    words: PooledTexts, is_decoder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_made = 0

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal num_made
            num_made += 1
            return method(*arguments)

        return call

    monkeypatch.setattr(pooled_texts, "MAX_TOKENS", 600)
    monkeypatch.setattr(ModelTokenizer, "framed_pair", counted(ModelTokenizer.framed_pair))
    monkeypatch.setattr(PromptWriter, "write", counted(PromptWriter.write))
    texts = decoder_texts() if is_decoder else words
    assert len(texts.encode_pairs([Pair("one " * 5, "two")] * 10, TextLimit(100, ""))) == 10
    with pytest.raises(InvalidField, match=r"documents may have at most 600 tokens in total \(counting a query"):
        texts.encode_pairs([Pair("one " * 20, "two")] * 2000, TextLimit(100, ""))
    assert num_made < 50


def test_the_texts_of_a_request_have_a_limit_together(words: PooledTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled_texts, "MAX_TOKENS", 9)
    with pytest.raises(InvalidField, match="input may have at most 9 tokens in total") as refused:
        words.encode(["one two one", [3] * 5], LIMIT)
    assert refused.value.param == "input"


def test_prompts_are_chosen_by_name() -> None:
    assert named_prompt(EMBEDDER, None) == named_prompt(EMBEDDER, "query") == "one "
    with pytest.raises(InvalidField, match='one of the model\'s prompts: "query"; given "other"'):
        named_prompt(EMBEDDER, "other")
    assert named_prompt(RERANKER, None) == ""


def test_a_codec_generates_unless_its_files_say_that_it_pools() -> None:
    codec = TextCodec({}, ByteTokenizer())
    assert codec.task is Task.GENERATE
    codec.close()
    codec = load_text_codec(ROOT / "models" / "demo-embeddings", "cpu")
    assert (codec.task, codec.has_chat_template) == (Task.EMBED, False)
    found = asyncio.run(codec.encode_pooled(lambda texts: texts.encode(["rain"], TextLimit(9, ""))))
    assert len(found) == 1
    codec.close()
