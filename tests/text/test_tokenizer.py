"""Text to token ids and back: the scripted runner's tokenizer, the demo model's, and other kinds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from genai_server.errors import ModelDirectoryError
from genai_server.text.tokenizer import ByteTokenizer, ModelTokenizer, Tokenizer
from tests.running_server import DEMO
from tests.text.small_tokenizers import compatible, sentencepiece, words

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
    "before\0after",
    "\ufffd was here already",
]
Make = Callable[[Callable[[Path], Path]], ModelTokenizer]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module", params=["bytes", "demo", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "bytes":
        return ByteTokenizer()
    return ModelTokenizer(DEMO if request.param == "demo" else sentencepiece(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return ModelTokenizer(DEMO)


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Makes a tokenizer of a kind."""
    return lambda kind: ModelTokenizer(kind(tmp_path))


# all of them


@given(text=ANY_TEXT)
def test_any_text_and_its_bytes_come_back_from_its_tokens(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    data = b"".join(map(tokenizer.token_bytes, tokens))
    assert data in (text.encode(), b" " + text.encode())  # SentencePiece adds a blank at the start of a text


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_tokens_and_no_character_is_shown_broken(tokenizer: Tokenizer, text: str) -> None:
    tokens, decoder = tokenizer.encode(text), tokenizer.decoder()
    assert tokenizer.decoder().decode(tokens) == text
    pieces = [decoder.decode([token]) for token in tokens]
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")
    assert all(tokenizer.has_token(token) for token in tokens)


def test_a_character_is_held_back_until_its_last_token_in_each_answer(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("x🦜")
    decoder = tokenizer.decoder()
    decoder.decode(tokens[:-4])
    assert [decoder.decode([token]) for token in tokens[-4:]] == ["", "", "", "🦜"]
    tokens = tokenizer.encode("🦜")
    first, second = tokenizer.decoder(), tokenizer.decoder()
    first.decode(tokens[:-1])
    assert second.decode(tokens) == "🦜"
    assert first.decode(tokens[-1:]) == "🦜"


def test_bytes_that_are_no_character_are_replaced(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("x🦜")[:-1] + tokenizer.encode("y")
    assert tokenizer.decode(tokens).replace(" ", "") == "x\ufffdy"
    assert tokenizer.decoder().decode(tokens).replace(" ", "") == "x\ufffdy"


def test_no_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert (tokenizer.encode(""), tokenizer.decode([]), tokenizer.decoder().decode([])) == ([], "", "")


@pytest.mark.parametrize("token", [-1, 100_000])
def test_unknown_token_id_has_no_text(tokenizer: Tokenizer, token: int) -> None:
    assert not tokenizer.has_token(token)
    assert tokenizer.token_bytes(token) == b""
    assert tokenizer.decoder().decode([*tokenizer.encode("a"), token]) == "a"


# the scripted runner's


def test_the_scripted_tokens_are_bytes_and_an_end_without_text() -> None:
    scripted = ByteTokenizer()
    assert scripted.encode("a", "é\x04") == [97, 0xC3, 0xA9, 4]
    assert (scripted.framed([97]), scripted.token_bytes(0xC3), scripted.vocab_size) == ([97], b"\xc3", 257)
    assert scripted.has_token(256)
    assert scripted.decode([97, 256, 98]) == "ab"


# the model's


def test_special_tokens_are_recognised_in_one_piece_only(demo: Tokenizer) -> None:
    assert demo.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert demo.encode("<|im_end|>") == [2]
    assert 2 not in demo.encode("<|im_", "end|>")
    assert demo.decode(demo.encode("<|im_", "end|>")) == "<|im_end|>"
    assert demo.token_bytes(2) == b"<|im_end|>"
    assert demo.token_bytes(demo.encode("é")[0]) == b"\xc3"
    assert demo.token_bytes(demo.vocab_size) == b""


def test_an_answer_shows_those_special_tokens_that_are_asked_for(demo: Tokenizer) -> None:
    tokens = demo.encode("<|im_start|>user<|im_end|>")
    assert demo.decoder().decode(tokens) == "user"
    assert demo.decoder(show=["<|im_start|>"]).decode(tokens) == "<|im_start|>user"
    assert demo.decoder(show=["<|im_end|>"]).decode(tokens[-1:]) == "<|im_end|>"
    assert demo.decoder(show={2, "<|nothing|>"}).decode(tokens) == "user<|im_end|>"
    assert demo.decode(tokens) == "<|im_start|>user<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, " " * 1_000_000, "1" * 1_000_000, "é" * 500_000, "<|im_end" * 100_000]
)
def test_a_million_characters_without_a_word_are_encoded(demo: Tokenizer, text: str) -> None:
    assert len(demo.encode(text)) > 100_000


# the kinds that models have


@pytest.mark.parametrize(
    ("kind", "text", "framed", "unknown"),
    [(sentencepiece, "a", [1, 259, 260], set()), (words, "one twos", [1, 3, 4, 5, 2], {0})],
)
def test_tokens_around_a_text_are_the_tokenizers_own(
    made: Make, kind: Callable[[Path], Path], text: str, framed: list[int], unknown: set[int]
) -> None:
    tokenizer = made(kind)
    assert (tokenizer.framed(tokenizer.encode(text)), tokenizer.unknown) == (framed, unknown)


def test_blank_before_a_text_is_dropped_but_inner_ones_stay(made: Make) -> None:
    tokenizer = made(sentencepiece)
    tokens = tokenizer.encode("hi hi")
    assert tokens[0] == tokens[1]
    assert tokenizer.token_bytes(tokens[0]) == b" hi"
    assert tokenizer.decoder().decode(tokens) == "hi hi"
    assert tokenizer.decoder(continues=True).decode(tokens) == " hi hi"
    assert tokenizer.decoder().decode([1, *tokens]) == "hi hi"


def test_words_are_put_together_as_the_library_does(made: Make) -> None:
    tokenizer = made(words)
    assert tokenizer.decode(tokenizer.encode("one twos")) == "one twos"
    decoder = tokenizer.decoder()
    assert [decoder.decode([token]) for token in tokenizer.encode("one twos")] == ["one", " two", "s"]


def test_an_added_token_is_the_text_that_it_says(made: Make) -> None:
    tokenizer = made(compatible)
    tokens = tokenizer.encode("<tool>é")
    assert len(tokens) == 2
    assert tokenizer.decoder().decode(tokens) == "<tool>é"
    assert tokenizer.special_tokens == {"<|end|>": 256}


# what cannot be loaded


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ('{"model": {"type": "none"}}', "")])
def test_missing_or_invalid_tokenizer_is_refused_by_file_name(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelDirectoryError, match=rf"tokenizer\.json cannot be loaded: {reason}"):
        ModelTokenizer(tmp_path)


def test_truncation_settings_of_training_are_ignored(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=100)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "more than three tokens, fewer than a hundred"
    assert ModelTokenizer(tmp_path).encode(text) == ModelTokenizer(DEMO).encode(text)


def test_a_tokenizer_that_encodes_a_to_nothing_or_pairs_to_other_texts_is_refused(tmp_path: Path) -> None:
    tokenizers.Tokenizer(tokenizers.models.BPE({"b": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelDirectoryError, match=r'tokenizer\.json cannot be used: it encodes "a" to zero tokens$'):
        ModelTokenizer(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    found = ModelTokenizer(tmp_path)
    found._anchor = [1]
    with pytest.raises(ModelDirectoryError, match=r'encodes "a" to \[1\], and to \[0, 0\] where it adds'):
        found.framed_pair([], [])
