"""The messages sent with each question, their parameters, and the file of a chat."""

import json
from pathlib import Path

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_history import Conversation, Message, SavedChat, load, save


def said(messages: list[Message] | None) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in messages or []]


def test_history_is_sent_with_each_question_and_system_prompt() -> None:
    conversation = Conversation("be terse")
    assert said(conversation.ask("one")) == ["s:be terse", "u:one"]
    conversation.answered("1")
    assert said(conversation.ask("two")) == ["s:be terse", "u:one", "a:1", "u:two"]


def test_a_question_without_an_answer_is_no_part_of_the_history() -> None:
    conversation = Conversation()
    conversation.ask("one")
    conversation.answered("")
    assert said(conversation.ask("two")) == ["u:two"]


def test_the_last_question_is_asked_again_without_its_answer() -> None:
    conversation = Conversation()
    for question in ("one", "two"):
        conversation.ask(question)
        conversation.answered(question.upper())
    assert said(conversation.ask_again()) == ["u:one", "a:ONE", "u:two"]
    conversation.answered("other")
    assert said(conversation.ask("three")) == ["u:one", "a:ONE", "u:two", "a:other", "u:three"]


def test_a_question_that_failed_can_be_asked_again() -> None:
    conversation = Conversation()
    conversation.ask("one")
    conversation.answered("1")
    conversation.ask("two")
    conversation.answered("")
    assert said(conversation.ask_again()) == ["u:one", "a:1", "u:two"]


def test_repeated_question_keeps_the_first_if_the_second_failed() -> None:
    conversation = Conversation()
    conversation.ask("one")
    conversation.answered("1")
    conversation.ask("one")
    conversation.answered("")
    assert said(conversation.ask_again()) == ["u:one", "a:1", "u:one"]


def test_forgetting_keeps_the_system_prompt() -> None:
    conversation = Conversation("be terse")
    conversation.ask("one")
    conversation.answered("1")
    conversation.clear()
    assert conversation.ask_again() is None
    assert said(conversation.ask("two")) == ["s:be terse", "u:two"]


def chat() -> SavedChat:
    conversation = Conversation("Be brief.")
    conversation.ask("one?")
    conversation.answered("One.")
    conversation.ask("two?")
    return SavedChat("m", conversation, {"temperature": 0.5, "seed": 7})


URLS = ["data:image/png;base64,AAAA", "data:image/gif;base64,BBBB"]
PICTURED: Message = {
    "role": "user",
    "content": [
        {"type": "image_url", "image_url": {"url": URLS[0]}},
        {"type": "image_url", "image_url": {"url": URLS[1]}},
        {"type": "text", "text": "What?"},
    ],
}


def test_images_are_parts_of_their_question_and_stay_in_history() -> None:
    conversation = Conversation()
    assert conversation.ask("What?", URLS) == [PICTURED]
    assert conversation.ask_again() == [PICTURED]
    conversation.answered("A cat.")
    assert conversation.ask("Sure?")[0] == PICTURED
    assert conversation.ask("Sure?")[2] == {"role": "user", "content": "Sure?"}


def test_images_are_saved_and_loaded_with_a_chat(tmp_path: Path) -> None:
    conversation = Conversation("Be brief.")
    conversation.ask("What?", URLS)
    save(tmp_path / "a.json", SavedChat("m", conversation, {}))
    assert load(tmp_path / "a.json").conversation.messages() == [{"role": "system", "content": "Be brief."}, PICTURED]


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
        ("{", "is not a saved chat: it is not JSON"),
        ("[]", "is not a saved chat"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "is not a saved chat"),
        ('{"messages": [{"role": "user", "content": [{"type": "sound"}]}]}', "is not a saved chat"),
        ('{"messages": [{"role": "system", "content": []}]}', "the system prompt must be a text"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "a message of the role user must follow"),
        ('{"messages": [], "temperature": "hot"}', "temperature must be a number"),
    ],
)
def test_invalid_saved_chat_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(ChatFailed, match=message):
        load(tmp_path / "a.json")
