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
from dataclasses import replace
from pathlib import Path

from genai_server.tools.launch.programs import PROGRAMS

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
_QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
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


def _agent(
    name: str, place: Place, prompt: str, options: tuple[str, ...], more: Mapping[str, str], *, by_hand: bool = False
) -> Ended:
    """Run the agent in the scratch folder: by `genai-server launch` if it knows the agent, or by its recipe."""
    (_scratch(place) / _INPUT).write_text(f"{prompt}\n", encoding="utf-8")
    environment = {
        "PATH": f"{place.commands}{os.pathsep}{os.environ['PATH']}",
        "PROMPT": "Hello." if _FROM_INPUT in options else prompt,
        "TERM": "dumb",
        **more,
    }
    lines = recipe(name, place.url, *options) if by_hand or name not in _LAUNCHED else _launch(name, place, options)
    return run(["sh", "-c", f"set -e\n{lines}"], environment, _scratch(place), _SECONDS)


def _launch(name: str, place: Place, options: tuple[str, ...]) -> str:
    """The line that launches an agent, in the form of `recipe`."""
    program = _LAUNCHED[name]
    launch = [str(Path(sys.executable).with_name("genai-server")), "launch", program.name, "--url", place.url, "--"]
    return " ".join([*map(shlex.quote, [*launch, *program.ask]), '"$PROMPT"', *options])


def _scratch(place: Place) -> Path:
    return place.folder / "scratch"


def _answers(ended: Ended, pattern: re.Pattern[str]) -> str:
    """Why the agent's output is wrong; "" if it is right."""
    if pattern.search(ended.output):
        return ""
    return ended.why or f"it said: {' '.join(ended.output.split())[-200:]}"


def _reads_a_file(
    name: str, call: Callable[[Path], dict[str, object]], options: tuple[str, ...], more: Mapping[str, str]
) -> Callable[[Place], list[Check]]:
    """The agent is instructed to call its tool that reads a file, and continues once the model has seen the file."""

    def check(place: Place) -> list[Check]:
        key = f"key-{secrets.token_hex(6)}"
        shutil.rmtree(_scratch(place), ignore_errors=True)
        _scratch(place).mkdir()
        file = _scratch(place) / "key.txt"
        file.write_text(f"{key}\n", encoding="utf-8")
        first = _agent(name, place, _SAID, options, more, by_hand=True)
        script = (
            f"script: say <tool_call>⏎{json.dumps(call(file))}⏎</tool_call>\nscript after {key}: say I have⏎read it"
        )
        second = _agent(name, place, script, options, more)
        return [
            Check("answers", _answers(first, _HEARD)),
            Check("calls a tool that reads a file", _answers(second, _READ)),
            *_ten_turns(name, place, call, options, more),
        ]

    return check


def _ten_turns(
    name: str,
    place: Place,
    call: Callable[[Path], dict[str, object]],
    options: tuple[str, ...],
    more: Mapping[str, str],
) -> list[Check]:
    """The agent reads one file after another, each in a turn of its own. Its requests are recorded and replayed."""
    keys = [f"key-{secrets.token_hex(6)}" for _ in range(_TURNS)]
    files = [_scratch(place) / f"{key}.txt" for key in keys]
    for key, file in zip(keys, files, strict=True):
        # The first line has no key, because the call's result may repeat the file's name.
        file.write_text(f"The text of this file ends here: {key[::-1]}\n", encoding="utf-8")
    said = [f"say <tool_call>⏎{json.dumps(call(file))}⏎</tool_call>" for file in files]
    script = [f"script: {said[0]}"]
    script += [
        f"script after {key[::-1]}: {one}" for key, one in zip(keys, [*said[1:], "say I have⏎read it"], strict=True)
    ]
    with relay(place.url) as through:
        ended = _agent(name, replace(place, url=through.url), "\n".join(script), options, more)
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


def _knows_its_window(
    check: Callable[[Place], list[Check]], name: str, options: tuple[str, ...], more: Mapping[str, str], written: str
) -> Callable[[Place], list[Check]]:
    """Such an agent also writes the context window in use, to its output or to its record of the session."""

    def check_window(place: Place) -> list[Check]:
        checks = check(place)
        ended = _agent(name, place, _SAID, options, more, by_hand=True)
        records = [path.read_text(encoding="utf-8") for path in _scratch(place).rglob("*.jsonl")]
        why = (
            "" if any(written in text for text in [ended.output, *records]) else ended.why or f"it writes no {written}"
        )
        return [*checks, Check("knows its window", why)]

    return check_window


def _finds_a_tool(
    check: Callable[[Place], list[Check]], name: str, options: tuple[str, ...], more: Mapping[str, str]
) -> Callable[[Place], list[Check]]:
    """Such an agent also sends few tools at first, and the others once the model has searched for them."""

    def check_search(place: Place) -> list[Check]:
        checks = check(place)
        search = {"name": "ToolSearch", "arguments": {"query": "select:TaskStop"}}
        stop = {"name": "TaskStop", "arguments": {"task_id": "none"}}
        script = (
            f"script: say <tool_call>⏎{json.dumps(search)}⏎</tool_call>\n"
            f"script after <function>: say <tool_call>⏎{json.dumps(stop)}⏎</tool_call>\n"
            # What the result of a tool says that knows no such task.
            "script after tool_use_error: say I have⏎read it"
        )
        with relay(place.url) as through:
            ended = _agent(name, replace(place, url=through.url), script, options, more)
        why = _answers(ended, _READ) or through.refused()
        return [*checks, Check("finds a tool by its search and calls it", why)]

    return check_search


def _check_aider(place: Place) -> list[Check]:
    key = f"key-{secrets.token_hex(6)}"
    shutil.rmtree(_scratch(place), ignore_errors=True)
    _scratch(place).mkdir()
    more = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    first = _agent("aider", place, _SAID, _AIDER, more)
    second = _agent("aider", place, f"script: say made.txt⏎```⏎{key}⏎```", _AIDER, more)
    made = _scratch(place) / "made.txt"
    written = made.exists() and made.read_text(encoding="utf-8").strip() == key
    return [
        Check("answers", _answers(first, _HEARD)),
        Check("writes a file", "" if written else second.why or "the file differs from the request"),
    ]


CODING_AGENTS = (
    Client(
        "Claude Code",
        ("@anthropic-ai/claude-code",),
        _finds_a_tool(
            _knows_its_window(
                _reads_a_file(
                    "Claude Code",
                    lambda file: {"name": "Read", "arguments": {"file_path": str(file)}},
                    (),
                    _QUIET,
                ),
                "Claude Code",
                ("--output-format", "json"),
                _QUIET,
                f'"contextWindow":{_WINDOW}',
            ),
            "Claude Code",
            (),
            _QUIET,
        ),
        Registry.NPM,
        recipe="Claude Code",
        postinstall="@anthropic-ai/claude-code/install.cjs",
    ),
    Client(
        "Codex",
        ("@openai/codex",),
        _knows_its_window(
            _reads_a_file(
                "Codex",
                lambda file: {"name": "exec_command", "arguments": {"cmd": f"cat {file.name}"}},
                _ANY_FOLDER,
                {},
            ),
            "Codex",
            _ANY_FOLDER,
            {},
            # It leaves 5 % out.
            f'"model_context_window":{_WINDOW * 95 // 100}',
        ),
        Registry.NPM,
        recipe="Codex",
    ),
    Client(
        "opencode",
        ("opencode-ai",),
        _reads_a_file(
            "opencode",
            lambda file: {"name": "read", "arguments": {"filePath": str(file)}},
            (_FROM_INPUT,),
            {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")},
        ),
        Registry.NPM,
        recipe="opencode",
        postinstall="opencode-ai/postinstall.mjs",
    ),
    Client(
        "Qwen Code",
        ("@qwen-code/qwen-code",),
        _reads_a_file(
            "Qwen Code",
            lambda file: {"name": "read_file", "arguments": {"file_path": str(file)}},
            (),
            {},
        ),
        Registry.NPM,
        recipe="Qwen Code",
    ),
    Client(
        "Continue",
        ("@continuedev/cli",),
        _reads_a_file(
            "Continue",
            lambda file: {"name": "Read", "arguments": {"filepath": str(file)}},
            (),
            {"CONTINUE_TELEMETRY_ENABLED": "0"},
        ),
        Registry.NPM,
        recipe="Continue",
    ),
    Client(
        "Cline",
        ("cline",),
        _reads_a_file(
            "Cline",
            lambda file: {"name": "read_files", "arguments": {"files": [{"path": str(file)}]}},
            (),
            # Without it a process stays behind.
            {"CLINE_SESSION_BACKEND_MODE": "local"},
        ),
        Registry.NPM,
        recipe="Cline",
    ),
    Client(
        "Vibe",
        ("mistral-vibe",),
        _reads_a_file(
            "Vibe",
            lambda file: {"name": "read", "arguments": {"file_path": str(file)}},
            ("--auto-approve",),
            {},
        ),
        recipe="Vibe",
        python="python3.13",
    ),
    Client(
        "GitHub Copilot CLI",
        ("@github/copilot",),
        _reads_a_file(
            "GitHub Copilot CLI",
            lambda file: {"name": "view", "arguments": {"path": str(file)}},
            ("--allow-all-tools",),
            {"COPILOT_OFFLINE": "true"},
        ),
        Registry.NPM,
        recipe="GitHub Copilot CLI",
    ),
    Client("aider", ("aider-chat",), _check_aider, recipe="aider"),
)
