"""The messages sent with each question."""

from genai_server.tools.terminal_chat.chat_history import Conversation, Message


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
