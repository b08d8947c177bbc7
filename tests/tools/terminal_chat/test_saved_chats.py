"""Chats in files."""

import json
from pathlib import Path

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_history import Conversation
from genai_server.tools.terminal_chat.saved_chats import SavedChat, load, save


def chat() -> SavedChat:
    conversation = Conversation("Be brief.")
    conversation.ask("one?")
    conversation.answered("One.")
    conversation.ask("two?")
    return SavedChat("m", conversation, {"temperature": 0.5, "seed": 7})


def test_the_file_is_the_body_of_a_request(tmp_path: Path) -> None:
    save(tmp_path / "a.json", chat())
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {
        "model": "m",
        "temperature": 0.5,
        "seed": 7,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one?"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "two?"},
        ],
    }


def test_loaded_chat_continues_where_it_was_saved(tmp_path: Path) -> None:
    save(tmp_path / "a.json", chat())
    found = load(tmp_path / "a.json")
    assert (found.model, found.parameters) == ("m", {"temperature": 0.5, "seed": 7})
    assert found.conversation.messages() == chat().conversation.messages()
    assert found.conversation.ask_again() == chat().conversation.messages()


def test_a_saved_chat_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    save(tmp_path / "a.json", chat())
    save(tmp_path / "a.json", SavedChat("other", Conversation(), {}))
    assert load(tmp_path / "a.json").model == "other"
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ChatFailed, match="exists and is not a saved chat"):
        save(tmp_path / "notes.txt", chat())
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ChatFailed, match="cannot be written: No such file or directory"):
        save(tmp_path / "none" / "a.json", chat())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a saved chat"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "is not a saved chat"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "a message of the role user must follow"),
        ('{"messages": [], "temperature": "hot"}', "temperature must be a number"),
    ],
)
def test_invalid_saved_chat_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(ChatFailed, match=message):
        load(tmp_path / "a.json")
