"""Text to token ids and back: of the scripted runner, and of the model that the repository ships."""

from pathlib import Path

import pytest

from genai_server.errors import InvalidField
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer, PieceDecoder, Tokenizer

DEMO = Path(__file__).parents[2] / "models" / "demo"
TEXTS = [
    "plain words, with punctuation.",
    "àéîõü ÀÉÎÕÜ ß ø",
    "日本語のテキスト、中文字符、한국어",
    "🦜🎉 and 👩‍👩‍👧‍👦 and 🇫🇷",
    "e\u0301 is not \u00e9",
    "  leading, double  and trailing blanks ",
    "lines\nand\r\nmore\n\n\n",
    "\tif x:\n\t\treturn {'a': [1, 2.5e-3]}",
    "मानक हिन्दी, العربية, עברית",
    "\ufffd was here already",
]


@pytest.fixture(scope="module", params=["bytes", "demo"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else ModelTokenizer(DEMO)


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return ModelTokenizer(DEMO)


# both tokenizers


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decoder().decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_a_character_is_never_shown_broken(tokenizer: Tokenizer, text: str) -> None:
    decoder = tokenizer.decoder()
    pieces = [decoder.decode([token]) for token in tokenizer.encode(text)]
    assert not [piece for piece in pieces if "\ufffd" in piece]
    assert "".join(pieces) == text


def test_a_character_is_held_back_until_its_last_token(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("🦜")
    decoder = tokenizer.decoder()
    assert len(tokens) > 1, "this test wants a character of several tokens"
    assert [decoder.decode([token]) for token in tokens] == [""] * (len(tokens) - 1) + ["🦜"]


def test_two_answers_do_not_mix(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("🦜")
    first, second = tokenizer.decoder(), tokenizer.decoder()
    first.decode(tokens[:-1])
    assert second.decode(tokens) == "🦜"
    assert first.decode(tokens[-1:]) == "🦜"


def test_no_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decoder().decode([]) == ""


# the scripted runner's


def test_the_scripted_tokens_are_bytes() -> None:
    assert ByteTokenizer().encode("aé\x04") == [97, 0xC3, 0xA9, 4]


def test_ids_above_a_byte_have_no_text() -> None:
    assert ByteTokenizer().decoder().decode([97, 256, 98, 100_000, 99]) == "abc"


def test_what_is_no_text_is_replaced_both_ways() -> None:
    assert ByteTokenizer().encode("a\ud800b") == list(b"a?b")
    assert ByteTokenizer().decoder().decode([97, 0xFF, 98]) == "a\ufffdb"


def test_a_piece_decoder_asks_for_the_tokens_one_by_one_and_in_order() -> None:
    asked = []

    def decode_one(token: int) -> str:
        asked.append(token)
        return f"<{token}>"

    assert PieceDecoder(decode_one).decode(iter([3, 1, 2])) == "<3><1><2>"
    assert asked == [3, 1, 2]


# the model's


def test_the_models_special_tokens_are_recognised_and_have_no_text(demo: Tokenizer) -> None:
    tokens = demo.encode("<|im_start|>user<|im_end|>")
    assert len(tokens) == len(demo.encode("user")) + 2
    assert demo.decoder().decode(tokens) == "user"


def test_a_character_that_would_cut_the_text_short_is_refused(demo: Tokenizer) -> None:
    with pytest.raises(InvalidField, match="NUL") as caught:
        demo.encode("before\0after")
    assert caught.value.param == "messages"


def test_a_directory_without_tokenizer_says_why_it_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"genai_config\.json"):
        ModelTokenizer(tmp_path)
