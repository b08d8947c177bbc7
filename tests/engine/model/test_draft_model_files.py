"""A draft model must have the tokens of the other one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.model.draft_model_files import check_draft_model
from genai_server.errors import ConfigurationError
from tests.model_edits import edited_config
from tests.running_server import DEMO, ROOT


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    directory = tmp_path / "draft"
    shutil.copytree(DEMO, directory)
    return directory


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    change(tokenizer)
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def test_model_with_the_same_tokens_can_draft(draft: Path) -> None:
    # Only token ids are read and written, so the rules by which texts are split do not matter.
    edit(draft, lambda tokenizer: tokenizer["model"].update(merges=[]))
    with edited_config(draft) as config:
        config["model"]["vocab_size"] += 64  # padded otherwise
    assert check_draft_model(DEMO, draft).vocab_size == 1920 + 64


def _renamed(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    text = next(text for text, id in vocabulary.items() if id == 300)
    del vocabulary[text]
    vocabulary["strange"] = 300


def _shorter(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {text: id for text, id in vocabulary.items() if id < 1900}


def _other_end(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][2]["content"] = "</s>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_renamed, 'token 300 is "strange" and not "'),
        (_shorter, "token 1900 is missing and not "),
        (_shorter, "it has 1900 tokens and not 1920"),
        (_other_end, 'special token 2 is "</s>" and not "<|im_end|>"'),
        (lambda tokenizer: tokenizer.pop("model"), "tokenizer.json cannot be read: it has a wrong 'model'"),
    ],
)
def test_other_tokens_are_named(draft: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit(draft, change)
    with pytest.raises(ConfigurationError) as raised:
        check_draft_model(DEMO, draft)
    assert raised.value.message.startswith(f"{draft}: ")
    assert message in raised.value.message


def test_vocabulary_must_have_all_tokens(draft: Path) -> None:
    with edited_config(draft) as config:
        config["model"]["vocab_size"] = 1000
    with pytest.raises(ConfigurationError, match=r"1000 tokens \(vocab_size\), the tokenizer has 1920"):
        check_draft_model(DEMO, draft)


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("models/none", "does not exist"),
        ("models/demo-embeddings", "it does not generate text"),
        ("models/demo-vision", "special token"),
    ],
)
def test_directories_that_cannot_draft_are_refused(directory: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_draft_model(DEMO, ROOT / directory)


def test_unigram_vocabularies_are_compared(draft: Path, tmp_path: Path) -> None:
    def to_list(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = [[text, 0.0] for text in sorted(vocabulary, key=vocabulary.get)]

    edit(draft, to_list)
    assert check_draft_model(DEMO, draft).vocab_size == 1920
    edit(draft, lambda tokenizer: tokenizer["model"]["vocab"][300].__setitem__(0, "strange"))
    with pytest.raises(ConfigurationError, match='token 300 is "strange"'):
        check_draft_model(DEMO, draft)
