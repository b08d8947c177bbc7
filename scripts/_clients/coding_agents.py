"""Coding agents: each answers, and does one thing to a file of a scratch folder.

For the first it is started by the lines of docs/guides/coding-agents.md, for the second by `genai-server launch` if
that knows it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from genai_server.tools.launch_command import PROGRAMS

from .client import Check, Client, Place, Registry
from .program import Ended, run
from .recipe import recipe
from .relay import Relay, relay

_SECONDS = 120.0
# An agent also shows its prompt, but with another character as the line break.
_SAID = "script: say hello⏎from the server"
_INPUT = "prompt.txt"
# For an agent that changes its argument and not its standard input.
_FROM_INPUT = f"<{_INPUT}"
_ANY_FOLDER = ("--skip-git-repo-check",)
_AIDER = (
    *("--yes-always", "--no-git", "--no-pretty", "--no-stream", "--no-show-model-warnings", "--no-detect-urls"),
    *("--no-check-update", "--analytics-disable"),
)
# The context of the recipes' server.
_WINDOW = 131072
_HEARD = re.compile(r"hello\s*\n\s*from the server")
_READ = re.compile(r"I have\s*\n\s*read it")
_TURNS = 10
_LAUNCHED = {program.title: program for program in PROGRAMS.values()}


@dataclass(frozen=True)
class Agent:
    """A coding agent, and the call of its tool that reads a file."""

    name: str
    package: str
    call: Callable[[Path], dict[str, object]]
    # Behind the prompt on its command line, and variables of its environment.
    options: tuple[str, ...] = ()
    more: Mapping[str, str] = field(default_factory=dict)
    # Options with which it writes the context window in use, to its output or to its record of the session, and what
    # it writes then.
    window: tuple[tuple[str, ...], str] | None = None
    # Whether it sends few tools at first, and the others once the model has searched for them.
    searches: bool = False


def _run(
    agent: Agent, place: Place, prompt: str, *, by_hand: bool = False, options: tuple[str, ...] | None = None
) -> Ended:
    """Run the agent in the scratch folder: by `genai-server launch` if it knows the agent, or by its recipe."""
    options = agent.options if options is None else options
    (_scratch(place) / _INPUT).write_text(f"{prompt}\n", encoding="utf-8")
    environment = {
        "PATH": f"{place.commands}{os.pathsep}{os.environ['PATH']}",
        "PROMPT": "Hello." if _FROM_INPUT in options else prompt,
        "TERM": "dumb",
        **agent.more,
    }
    if by_hand or (program := _LAUNCHED.get(agent.name)) is None:
        lines = recipe(agent.name, place.url, *options)
    else:
        command = str(Path(sys.executable).with_name("genai-server"))
        launch = [command, "launch", program.name, "--url", place.url, "--", *program.ask]
        lines = " ".join([*map(shlex.quote, launch), '"$PROMPT"', *options])
    return run(["sh", "-c", f"set -e\n{lines}"], environment, _scratch(place), _SECONDS)


def _scratch(place: Place) -> Path:
    return place.folder / "scratch"


def _clean(place: Place) -> None:
    shutil.rmtree(_scratch(place), ignore_errors=True)
    _scratch(place).mkdir()


def _key() -> str:
    return f"key-{secrets.token_hex(6)}"


def _calling(call: Mapping[str, object]) -> str:
    """The command with which the model makes a call."""
    return f"say <tool_call>⏎{json.dumps(call)}⏎</tool_call>"


def _answers(ended: Ended, pattern: re.Pattern[str]) -> str:
    """Why the agent's output is wrong; "" if it is right."""
    if pattern.search(ended.output):
        return ""
    return ended.why or f"it said: {' '.join(ended.output.split())[-200:]}"


def _check(agent: Agent, place: Place) -> list[Check]:
    """The agent is instructed to call its tool that reads a file, and continues once the model has seen the file."""
    _clean(place)
    key, file = _key(), _scratch(place) / "key.txt"
    file.write_text(f"{key}\n", encoding="utf-8")
    first = _run(agent, place, _SAID, by_hand=True)
    second = _run(agent, place, f"script: {_calling(agent.call(file))}\nscript after {key}: say I have⏎read it")
    return [
        Check("answers", _answers(first, _HEARD)),
        Check("calls a tool that reads a file", _answers(second, _READ)),
        *_ten_turns(agent, place),
        *_knows_its_window(agent, place),
        *_finds_a_tool(agent, place),
    ]


def _ten_turns(agent: Agent, place: Place) -> list[Check]:
    """The agent reads one file after another, each in a turn of its own. Its requests are recorded and replayed."""
    keys = [_key() for _ in range(_TURNS)]
    files = [_scratch(place) / f"{key}.txt" for key in keys]
    for key, file in zip(keys, files, strict=True):
        # The first line has no key, because the call's result may repeat the file's name.
        file.write_text(f"The text of this file ends here: {key[::-1]}\n", encoding="utf-8")
    said = [_calling(agent.call(file)) for file in files]
    script = [f"script: {said[0]}"]
    script += [
        f"script after {key[::-1]}: {one}" for key, one in zip(keys, [*said[1:], "say I have⏎read it"], strict=True)
    ]
    with relay(place.url) as through:
        ended = _run(agent, replace(place, url=through.url), "\n".join(script))
    return [
        Check("reads ten files one after another", _answers(ended, _READ)),
        Check("no request is refused", through.refused()),
        Check("its first and tenth request fit the templates of other models", _replayed(through, place)),
    ]


def _replayed(recorded: Relay, place: Place) -> str:
    """Why a request does not fit the templates; "" if all do."""
    bodies = recorded.asked("script after")
    if len(bodies) < _TURNS:
        return f"it asked {len(bodies)} times only"
    found = [fault for path, body in (bodies[0], bodies[_TURNS - 1]) for fault in place.faults(path, body)]
    return "; ".join(found)[:500]


def _knows_its_window(agent: Agent, place: Place) -> list[Check]:
    if agent.window is None:
        return []
    options, written = agent.window
    ended = _run(agent, place, _SAID, by_hand=True, options=options)
    records = [path.read_text(encoding="utf-8") for path in _scratch(place).rglob("*.jsonl")]
    is_written = any(written in text for text in [ended.output, *records])
    return [Check("knows its window", "" if is_written else ended.why or f"it writes no {written}")]


def _finds_a_tool(agent: Agent, place: Place) -> list[Check]:
    if not agent.searches:
        return []
    search = {"name": "ToolSearch", "arguments": {"query": "select:TaskStop"}}
    stop = {"name": "TaskStop", "arguments": {"task_id": "none"}}
    script = (
        f"script: {_calling(search)}\n"
        f"script after <function>: {_calling(stop)}\n"
        # What the result of a tool says that knows no such task.
        "script after tool_use_error: say I have⏎read it"
    )
    with relay(place.url) as through:
        ended = _run(agent, replace(place, url=through.url), script)
    return [Check("finds a tool by its search and calls it", _answers(ended, _READ) or through.refused())]


def _check_aider(agent: Agent, place: Place) -> list[Check]:
    """It has no tools: it writes what the answer says."""
    _clean(place)
    key = _key()
    first = _run(agent, place, _SAID)
    second = _run(agent, place, f"script: say made.txt⏎```⏎{key}⏎```")
    made = _scratch(place) / "made.txt"
    written = made.exists() and made.read_text(encoding="utf-8").strip() == key
    return [
        Check("answers", _answers(first, _HEARD)),
        Check("writes a file", "" if written else second.why or "the file differs from the request"),
    ]


def _calls(name: str, argument: str) -> Callable[[Path], dict[str, object]]:
    """A call with the file's path."""
    return lambda file: {"name": name, "arguments": {argument: str(file)}}


def _client(
    agent: Agent,
    registry: Registry = Registry.NPM,
    check: Callable[[Agent, Place], list[Check]] = _check,
    *,
    postinstall: str = "",
    python: str = "",
) -> Client:
    return Client(
        agent.name,
        (agent.package,),
        partial(check, agent),
        registry,
        recipe=agent.name,
        postinstall=postinstall,
        python=python,
    )


CODING_AGENTS = (
    _client(
        Agent(
            "Claude Code",
            "@anthropic-ai/claude-code",
            _calls("Read", "file_path"),
            more={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
            window=(("--output-format", "json"), f'"contextWindow":{_WINDOW}'),
            searches=True,
        ),
        postinstall="@anthropic-ai/claude-code/install.cjs",
    ),
    _client(
        Agent(
            "Codex",
            "@openai/codex",
            lambda file: {"name": "exec_command", "arguments": {"cmd": f"cat {file.name}"}},
            _ANY_FOLDER,
            # It leaves 5 % out.
            window=(_ANY_FOLDER, f'"model_context_window":{_WINDOW * 95 // 100}'),
        )
    ),
    _client(
        Agent(
            "opencode",
            "opencode-ai",
            _calls("read", "filePath"),
            (_FROM_INPUT,),
            {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")},
        ),
        postinstall="opencode-ai/postinstall.mjs",
    ),
    _client(Agent("Qwen Code", "@qwen-code/qwen-code", _calls("read_file", "file_path"))),
    _client(
        Agent("Continue", "@continuedev/cli", _calls("Read", "filepath"), more={"CONTINUE_TELEMETRY_ENABLED": "0"})
    ),
    _client(
        Agent(
            "Cline",
            "cline",
            lambda file: {"name": "read_files", "arguments": {"files": [{"path": str(file)}]}},
            # Without it a process stays behind.
            more={"CLINE_SESSION_BACKEND_MODE": "local"},
        )
    ),
    _client(
        Agent("Vibe", "mistral-vibe", _calls("read", "file_path"), ("--auto-approve",)),
        Registry.PYPI,
        python="python3.13",
    ),
    _client(
        Agent(
            "GitHub Copilot CLI",
            "@github/copilot",
            _calls("view", "path"),
            ("--allow-all-tools",),
            {"COPILOT_OFFLINE": "true"},
        )
    ),
    _client(
        Agent("aider", "aider-chat", _calls("", ""), _AIDER, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}),
        Registry.PYPI,
        _check_aider,
    ),
)
