"""Coding agents, by the lines of docs/clients.md: each answers, and does one thing to a file of a scratch folder."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from .client import Check, Client, Place, Registry
from .program import Ended, run
from .recipe import recipe

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


def _agent(name: str, place: Place, prompt: str, options: tuple[str, ...], more: Mapping[str, str]) -> Ended:
    """Run the agent's recipe in the scratch folder."""
    (_scratch(place) / _INPUT).write_text(f"{prompt}\n", encoding="utf-8")
    environment = {
        "PATH": f"{place.commands}{os.pathsep}{os.environ['PATH']}",
        "PROMPT": "Hello." if _FROM_INPUT in options else prompt,
        "TERM": "dumb",
        **more,
    }
    lines = recipe(name, place.url, *options)
    return run(["sh", "-c", f"set -e\n{lines}"], environment, _scratch(place), _SECONDS)


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
        first = _agent(name, place, _SAID, options, more)
        script = (
            f"script: say <tool_call>⏎{json.dumps(call(file))}⏎</tool_call>\nscript after {key}: say I have⏎read it"
        )
        second = _agent(name, place, script, options, more)
        return [
            Check("answers", _answers(first, _HEARD)),
            Check("calls a tool that reads a file", _answers(second, re.compile(r"I have\s*\n\s*read it"))),
        ]

    return check


def _knows_its_window(
    check: Callable[[Place], list[Check]], name: str, options: tuple[str, ...], more: Mapping[str, str], written: str
) -> Callable[[Place], list[Check]]:
    """Such an agent also writes the context window in use, to its output or to its record of the session."""

    def check_window(place: Place) -> list[Check]:
        checks = check(place)
        ended = _agent(name, place, _SAID, options, more)
        records = [path.read_text(encoding="utf-8") for path in _scratch(place).rglob("*.jsonl")]
        why = (
            "" if any(written in text for text in [ended.output, *records]) else ended.why or f"it writes no {written}"
        )
        return [*checks, Check("knows its window", why)]

    return check_window


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
    Client("aider", ("aider-chat",), _check_aider, recipe="aider"),
)
