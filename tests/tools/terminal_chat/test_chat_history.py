"""The messages sent with each question, their parameters, and the file of a chat."""

import json
from pathlib import Path

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_history import Conversation, Message, Part, SavedChat, load, save


def said(messages: list[Message] | None) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in messages or []]


def talked(*turns: tuple[str, str], system: str = "") -> Conversation:
    """A conversation of these questions and answers; one that failed has an empty answer."""
    conversation = Conversation(system)
    for question, answer in turns:
        conversation.ask(question)
        conversation.answered(answer)
    return conversation


def test_history_is_sent_with_each_question_and_system_prompt_until_it_is_forgotten() -> None:
    conversation = talked(("one", "1"), ("failed", ""), system="be terse")
    assert said(conversation.ask("two")) == ["s:be terse", "u:one", "a:1", "u:two"]
    conversation.clear()
    assert conversation.ask_again() is None
    assert said(conversation.ask("three")) == ["s:be terse", "u:three"]


@pytest.mark.parametrize(
    ("turns", "again"),
    [
        ([("one", "1"), ("two", "2")], ["u:one", "a:1", "u:two"]),
        ([("one", "1"), ("two", "")], ["u:one", "a:1", "u:two"]),
        ([("one", "1"), ("one", "")], ["u:one", "a:1", "u:one"]),
    ],
    ids=["answered", "failed", "repeated and failed"],
)
def test_the_last_question_is_asked_again_without_its_answer(turns: list[tuple[str, str]], again: list[str]) -> None:
    conversation = talked(*turns)
    assert said(conversation.ask_again()) == again
    conversation.answered("other")
    assert said(conversation.ask("three")) == [*again, "a:other", "u:three"]


def chat() -> SavedChat:
    conversation = talked(("one?", "One."), system="Be brief.")
    conversation.ask("two?")
    return SavedChat("m", conversation, {"temperature": 0.5, "seed": 7})


URLS = ["data:image/png;base64,AAAA", "data:image/gif;base64,BBBB"]
IMAGES: list[Part] = [{"type": "image_url", "image_url": {"url": url}} for url in URLS]
PICTURED: Message = {"role": "user", "content": [*IMAGES, {"type": "text", "text": "What?"}]}


def test_images_are_parts_of_their_question_in_the_history_and_when_it_is_saved(tmp_path: Path) -> None:
    conversation = Conversation()
    assert conversation.ask("What?", URLS) == [PICTURED]
    assert conversation.ask_again() == [PICTURED]
    save(tmp_path / "a.json", SavedChat("m", conversation, {}))
    assert load(tmp_path / "a.json").conversation.messages() == [PICTURED]
    conversation.answered("A cat.")
    assert conversation.ask("Sure?")[::2] == [PICTURED, {"role": "user", "content": "Sure?"}]


def test_the_file_is_the_body_of_a_request_and_continues_where_it_was_saved(tmp_path: Path) -> None:
    save(tmp_path / "a.json", chat())
    messages = chat().conversation.messages()
    assert said(messages) == ["s:Be brief.", "u:one?", "a:One.", "u:two?"]
    written = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert written == {"model": "m", "temperature": 0.5, "seed": 7, "messages": messages}
    found = load(tmp_path / "a.json")
    assert (found.model, found.parameters) == ("m", {"temperature": 0.5, "seed": 7})
    assert found.conversation.messages() == found.conversation.ask_again() == messages


def test_a_saved_chat_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    save(tmp_path / "a.json", chat())
    save(tmp_path / "a.json", SavedChat("other", Conversation(), {}))
    assert load(tmp_path / "a.json").model == "other"
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ChatFailed, match="exists and is not a saved chat"):
        save(tmp_path / "notes.txt", chat())
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"
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
