"""`chat --mcp`: tools that the server runs, and approvals in the terminal."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_history import Conversation, Message, SavedChat, load, save
from tests.running_server import RunningServer, clean_environment, run_command
from tests.server_here import run_here

PROGRAM = Path(__file__).parents[2] / "tool_server.py"


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>⏎{json.dumps({'name': name, 'arguments': arguments})}⏎</tool_call>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tools")
    program = json.dumps([sys.executable, str(PROGRAM)])
    text = f'[mcp.free]\ncommand = {program}\n[mcp.guarded]\ncommand = {program}\napproval = "always"\n'
    (folder / "server.toml").write_text(text, encoding="utf-8")
    options = ["--config", str(folder / "server.toml"), "--device", "scripted", "--max-length", "20000"]
    with run_here(folder, *options) as server:
        yield server


def chat(server: RunningServer, *options: str, said: str = "") -> tuple[str, str]:
    done = run_command("chat", server.url, *options, environment=clean_environment(), said=said)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_one_question_shows_results_and_declines_without_a_terminal(server: RunningServer) -> None:
    question = f"script: say {call('free__echo', text='heron')}\nscript after heron: say It said so."
    shown, _ = chat(server, question, "--mcp", "free")
    assert "It said so." in shown
    question = f"script: say {call('guarded__echo', text='heron')}\nscript after declined: say As you like."
    shown, aside = chat(server, question, "--mcp", "guarded")
    assert ("As you like." in shown, "no: there is no terminal" in aside) == (True, True)


@pytest.mark.parametrize(("typed", "result", "answer"), [("y", "heron", "Run."), ("n", "declined", "As you like.")])
def test_dialogue_asks_before_a_tool_runs_and_keeps_the_calls(
    server: RunningServer, tmp_path: Path, typed: str, result: str, answer: str
) -> None:
    question = [
        f"script: say {call('guarded__echo', text='heron')}",
        "script after declined: say As you like." if typed == "n" else "script after heron: say Run.",
    ]
    lines = ['"""', *question, '"""', typed, f"/save {tmp_path / 'chat.json'}", "script: say Second."]
    shown, _ = chat(server, "--mcp", "guarded", said="\n".join(lines))
    assert answer in shown
    assert "Second." in shown
    asked, called, output, last = load(tmp_path / "chat.json").conversation.messages()
    assert (asked["role"], last["content"]) == ("user", answer)
    assert called["tool_calls"][0]["function"]["name"] == "guarded__echo"
    assert result in str(output["content"])


def test_saved_calls_must_be_in_order(tmp_path: Path) -> None:
    call: Message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    result: Message = {"role": "tool", "content": "r", "tool_call_id": "c"}
    asked: Message = {"role": "user", "content": "q"}
    answered: Message = {"role": "assistant", "content": "a"}
    whole = [asked, call, result, result, call, result, answered, asked]
    save(tmp_path / "a.json", SavedChat("m", Conversation.of(whole), {}))
    loaded = load(tmp_path / "a.json").conversation
    assert loaded.messages() == whole
    assert loaded.ask("other")[:7] == whole[:7]
    assert Conversation.of(whole[:7]).ask_again() == [asked]
    for wrong, role in (([asked, result], "assistant"), ([asked, call, answered], "tool"), ([result], "user")):
        with pytest.raises(ValueError, match=f"a message of the role {role} must follow"):
            Conversation.of(wrong)
    (tmp_path / "b.json").write_text('{"messages": [{"role": "tool", "content": ""}]}', encoding="utf-8")
    with pytest.raises(ChatFailed, match="user must follow"):
        load(tmp_path / "b.json")
