"""Coding agents: each answers, and reads files of a scratch folder or writes one.

For the first it is started by the lines of docs/guides/coding-agents.md, for the second by `genai-server launch` if
that knows it. coding_agents.toml has their packages and options.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from _templates.replay import faults

from genai_server.tools.launch_command import PROGRAMS

from .client import Check, Client, Place
from .program import Ended, run
from .recipe import recipe
from .relay import Relay, relay

_TABLE = Path(__file__).with_name("coding_agents.toml")
_SECONDS = 120.0
# An agent also shows its prompt, but with another character as the line break.
_SAID = "script: say hello⏎from the server"
_HEARD = re.compile(r"hello\s*\n\s*from the server")
_READ = re.compile(r"I have\s*\n\s*read it")
_TURNS = 10
_LAUNCHED = {program.title: program for program in PROGRAMS.values()}


@dataclass(frozen=True)
class Agent:
    """A coding agent, as the table describes it."""

    name: str
    options: Sequence[str] = ()
    more: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, Any] | None = None

    def call(self, file: Path) -> str:
        """The command with which the model makes the call that reads this file."""
        call = json.dumps(self.reads).replace("$FILE", str(file)).replace("$NAME", file.name)
        return f"say <tool_call>⏎{call}⏎</tool_call>"


def _run(agent: Agent, place: Place, prompt: str, *, by_hand: bool = False) -> Ended:
    """Run the agent in the scratch folder: by `genai-server launch` if it knows the agent, or by its recipe. A file
    there, prompt.txt, has the prompt as well.
    """
    (_scratch(place) / "prompt.txt").write_text(f"{prompt}\n", encoding="utf-8")
    environment = {
        "PATH": f"{place.commands}{os.pathsep}{os.environ['PATH']}",
        "PROMPT": "Hello." if "<prompt.txt" in agent.options else prompt,
        "TERM": "dumb",
        **agent.more,
    }
    if by_hand or (program := _LAUNCHED.get(agent.name)) is None:
        lines = recipe(agent.name, place.url, *agent.options)
    else:
        command = str(Path(sys.executable).with_name("genai-server"))
        launch = [command, "launch", program.name, "--url", place.url, "--", *program.ask]
        lines = " ".join([*map(shlex.quote, launch), '"$PROMPT"', *agent.options])
    return run(["sh", "-c", f"set -e\n{lines}"], environment, _scratch(place), _SECONDS)


def _scratch(place: Place) -> Path:
    return place.folder / "scratch"


def _key() -> str:
    return f"key-{secrets.token_hex(6)}"


def _answers(ended: Ended, pattern: re.Pattern[str]) -> str:
    """Why the agent's output is wrong; "" if it is right."""
    if pattern.search(ended.output):
        return ""
    return ended.why or f"it said: {' '.join(ended.output.split())[-200:]}"


def _check(agent: Agent, place: Place) -> list[Check]:
    shutil.rmtree(_scratch(place), ignore_errors=True)
    _scratch(place).mkdir()
    answered = Check("answers", _answers(_run(agent, place, _SAID, by_hand=True), _HEARD))
    if agent.reads is None:
        return [answered, _writes(agent, place)]
    return [answered, *_ten_turns(agent, place)]


def _writes(agent: Agent, place: Place) -> Check:
    """An agent without tools writes the file that the answer says."""
    key, made = _key(), _scratch(place) / "made.txt"
    ended = _run(agent, place, f"script: say made.txt⏎```⏎{key}⏎```")
    written = made.exists() and made.read_text(encoding="utf-8").strip() == key
    return Check("writes a file", "" if written else ended.why or "the file differs from the request")


def _ten_turns(agent: Agent, place: Place) -> list[Check]:
    """The agent is instructed to call its tool that reads a file, and to call it for the next one once the model has
    seen the file. Its requests are recorded and replayed.
    """
    keys = [_key() for _ in range(_TURNS)]
    files = [_scratch(place) / f"{key}.txt" for key in keys]
    for key, file in zip(keys, files, strict=True):
        # The first line has no key, because the call's result may repeat the file's name.
        file.write_text(f"The text of this file ends here: {key[::-1]}\n", encoding="utf-8")
    first, *later = map(agent.call, files)
    script = [f"script: {first}"]
    script += [
        f"script after {key[::-1]}: {said}" for key, said in zip(keys, [*later, "say I have⏎read it"], strict=True)
    ]
    with relay(place.url) as through:
        ended = _run(agent, replace(place, url=through.url), "\n".join(script))
    return [
        Check("reads ten files one after another", _answers(ended, _READ)),
        Check("no request is refused", "; ".join(through.refusals)[:300]),
        Check("its first and tenth request fit the templates of other models", _replayed(through)),
    ]


def _replayed(recorded: Relay) -> str:
    """Why a request does not fit the templates; "" if all do."""
    bodies = recorded.asked("script after")
    if len(bodies) < _TURNS:
        return f"it asked {len(bodies)} times only"
    found = [fault for path, body in (bodies[0], bodies[_TURNS - 1]) for fault in faults(path, body)]
    return "; ".join(found)[:500]


def _client(name: str, package: str, npm: bool = True, postinstall: str = "", python: str = "", **row: Any) -> Client:
    """The client that a row of the table describes."""
    check = partial(_check, Agent(name, **row))
    return Client(name, (package,), check, npm, recipe=name, postinstall=postinstall, python=python)


CODING_AGENTS = tuple(_client(**row) for row in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["agent"])
