"""`genai-server launch [PROGRAM [MODEL]] [-- ARGUMENT…]`: starts a coding agent with a model of a running server.

The agent is told the server's address, the model and its context in its environment and its arguments; its
configuration files stay as they are. The arguments after `--` are passed to the agent. Without PROGRAM the command
lists the agents, and whether each is installed.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from genai_server.cli.parser import SuggestingParser
from genai_server.cli.screen import print_report, print_to_stderr, screen
from genai_server.cli.serve.welcome import url_of
from genai_server.config.environment import launched_environment
from genai_server.config.sources import load_settings
from genai_server.errors import ConfigurationError, ServerUnusable, did_you_mean, quoted
from genai_server.tools.server_answers import ask, authorization, checked_url

# What stands for an API key on a server without keys: agents refuse an empty one.
NO_KEY = "none"
# Tokens of context below which an agent's instructions, tools and first files hardly fit.
MINIMUM_CONTEXT = 32_768
# The part of a context that is kept for an answer, and the most of it.
_ANSWER_SHARE, _LONGEST_ANSWER = 8, 8192
_WIDTH = 110


@dataclass(frozen=True)
class Target:
    """The server and the model that a coding agent is started with: the server's URL without /v1, the model's name, the
    maximum number of tokens of prompt and answer together (`context`), and an API key.
    """

    # The server's URL, without /v1.
    url: str
    model: str
    # Maximum tokens of prompt and answer together.
    context: int
    api_key: str = NO_KEY

    @property
    def answer(self) -> int:
        """How many tokens of the context are reserved for an answer."""
        return min(self.context // _ANSWER_SHARE, _LONGEST_ANSWER)


@dataclass(frozen=True)
class Program:
    """A coding agent for the terminal that `genai-server launch` can start: its name, its command, how to install it,
    and the environment variables and arguments that make it use a server.
    """

    # Its name on this command line.
    name: str
    # Its own name, which is its heading in docs/guides/coding-agents.md.
    title: str
    command: str
    # The command that installs it.
    install: str
    environment: Callable[[Target], Mapping[str, str]]
    # Arguments before the user's own ones.
    arguments: Callable[[Target], Sequence[str]] = lambda target: ()
    # Arguments that let it answer one question and end; the question follows.
    ask: Sequence[str] = ()
    # Variables that would take precedence over its environment.
    removed: Sequence[str] = ()


def _claude(target: Target) -> Mapping[str, str]:
    names = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    return {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.api_key,
        **dict.fromkeys(names, target.model),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        # Otherwise each session's prompt begins with another header, and no cached prefix fits.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }


def _codex(target: Target) -> Sequence[str]:
    provider = f'{{name="genai-server",base_url="{target.url}/v1",wire_api="responses",env_key="GENAI_KEY"}}'
    values = {
        # In quotes, because the values are TOML, in which a name could be a number.
        "model": json.dumps(target.model),
        "model_context_window": str(target.context),
        "model_provider": "genai",
        "model_providers.genai": provider,
    }
    return [word for name, value in values.items() for word in ("-c", f"{name}={value}")]


def _opencode(target: Target) -> Mapping[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.api_key},
        "models": {target.model: {"limit": {"context": target.context, "output": target.answer}}},
    }
    name = f"genai/{target.model}"
    config = {"model": name, "small_model": name, "provider": {"genai": provider}}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config, indent=2)}


def _qwen(target: Target) -> Mapping[str, str]:
    return {
        "OPENAI_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.api_key,
        "OPENAI_MODEL": target.model,
    }


def _vibe(target: Target) -> Mapping[str, str]:
    provider = {
        "name": "genai",
        "api_base": f"{target.url}/v1",
        "api_key_env_var": "GENAI_KEY",
        "backend": "generic",
    }
    model = {
        "name": target.model,
        "alias": target.model,
        "provider": "genai",
        "auto_compact_threshold": target.context - target.answer,
    }
    return {
        "GENAI_KEY": target.api_key,
        "VIBE_ACTIVE_MODEL": target.model,
        "VIBE_PROVIDERS": json.dumps([provider]),
        "VIBE_MODELS": json.dumps([model]),
    }


def _copilot(target: Target) -> Mapping[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{target.url}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_PROVIDER_API_KEY": target.api_key,
        "COPILOT_MODEL": target.model,
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(target.context - target.answer),
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": str(target.answer),
    }


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "claude",
            "Claude Code",
            "claude",
            "npm install -g @anthropic-ai/claude-code",
            _claude,
            ask=("-p",),
            removed=("ANTHROPIC_API_KEY",),
        ),
        Program(
            "codex",
            "Codex",
            "codex",
            "npm install -g @openai/codex",
            lambda target: {"GENAI_KEY": target.api_key},
            _codex,
            ask=("exec",),
        ),
        Program("opencode", "opencode", "opencode", "npm install -g opencode-ai", _opencode, ask=("run",)),
        Program("qwen", "Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", _qwen, ask=("-p",)),
        Program("vibe", "Vibe", "vibe", "uv tool install mistral-vibe", _vibe, ask=("--trust", "-p")),
        Program(
            "copilot",
            "GitHub Copilot CLI",
            "copilot",
            "npm install -g @github/copilot",
            _copilot,
            ask=("-p",),
            removed=("COPILOT_PROVIDER_BEARER_TOKEN",),
        ),
    )
}


def recipe(program: Program, target: Target, more: Sequence[str]) -> str:
    """Return shell commands that start a coding agent with a server and model, for people who start it themselves:
    lines that set environment variables, and the agent's command. `more` are further arguments of the agent.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in program.environment(target).items()]
    if program.removed:
        lines.insert(0, f"unset {' '.join(program.removed)}")
    return "\n".join([*lines, _wrapped([program.command, *program.arguments(target), *more])]) + "\n"


def _wrapped(words: Sequence[str]) -> str:
    """Return a shell command of these words, with escaped line breaks so that lines fit the width of a documentation
    page.

    The option `-c` and its value stay on one line.
    """
    lines, part = [""], ""
    for word in map(_quoted, words):
        part += f" {word}" if part else word
        if word == "-c":
            continue
        if lines[-1] and len(lines[-1]) + len(part) > _WIDTH:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
        part = ""
    return " \\\n  ".join(lines)


def _quoted(word: str) -> str:
    """Return a word quoted for a shell where necessary. A text of several words gets double quotes if these suffice,
    because people write it so.
    """
    is_plain = all(letter.isalnum() or letter in " .,:;?-" for letter in word)
    return f'"{word}"' if " " in word and is_plain else shlex.quote(word)


_TIMEOUT = 10.0


def add_arguments(parser: SuggestingParser) -> None:
    """Add the arguments and options of `genai-server launch` to `parser`, and set `run` as the function that executes
    the command. Arguments after `--` are kept for the agent.
    """
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=f"{', '.join(PROGRAMS)} (default: list them)")
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="its name in /v1/models (default: the first that calls tools)"
    )
    parser.add_argument("--url", metavar="URL", help="the server's address (default: this machine, HOST and PORT)")
    parser.add_argument("--api-key", metavar="KEY", help="an API key of the server")
    parser.add_argument("--print", action="store_true", help="show the environment and the command, and start nothing")
    parser.add_argument("--force", action="store_true", help="start it although the model does not fit")
    parser.rest_to = "more"
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:  # noqa: RET503  _start does not return
    """Execute `genai-server launch`: start the coding agent in place of this process, or list the agents if none is
    named, or print the agent's command (`--print`). `arguments` are the parsed command line. Returns the exit status
    unless an agent was started.

    Raises ConfigurationError for an agent or model that cannot be used, and ServerUnusable if the server does not
    answer.
    """
    if arguments.program is None:
        print_report(screen(), [_programs()])
        return 0
    program = PROGRAMS.get(arguments.program)
    if program is None:
        suggestion = did_you_mean(arguments.program, PROGRAMS) or f"; known are {', '.join(PROGRAMS)}"
        raise ConfigurationError(f"PROGRAM={quoted(arguments.program)} is not known{suggestion}")
    path = shutil.which(program.command)
    if path is None and not arguments.print:
        raise ConfigurationError(
            f"{program.title} is not installed: no {program.command} is on the PATH. Install it: {program.install}"
        )
    target = _target(arguments)
    if path is None or arguments.print:
        print(recipe(program, target, arguments.more), end="")
        return 0
    print_to_stderr(f"{program.title} with {target.model} at {target.url}, {target.context} tokens of context")
    _start(program, path, target, arguments.more)


def _programs() -> list[list[str]]:
    """Return the table of coding agents, with titles in the first row: name on the command line, full name, and where
    it is installed or else how to install it.
    """
    rows = [["program", "name", "installed"]]
    for program in PROGRAMS.values():
        rows.append([program.name, program.title, shutil.which(program.command) or f"no; {program.install}"])
    return rows


def _target(arguments: argparse.Namespace) -> Target:
    """Return the server and the model with which the agent shall be started, as the parsed command line says, or by
    default the server at the configured address and its first suitable model.

    Raises ServerUnusable if the server does not answer or has not loaded the model yet, and ConfigurationError if the
    model does not exist or does not suit a coding agent.
    """
    if arguments.url is None:
        settings = load_settings()
        url = url_of(settings.host, settings.port, is_https=bool(settings.tls_cert))
    else:
        url = checked_url(arguments.url).removesuffix("/v1")
    answer = ask(url, "/v1/models", authorization(arguments.api_key), _TIMEOUT)
    try:
        models = {str(entry["id"]): entry for entry in json.loads(answer)["data"]}
    except (ValueError, LookupError, TypeError):
        raise ServerUnusable(f"{url} is not a genai-server") from None
    name = _chosen(models, arguments.model, url)
    entry = models[name]
    context = entry.get("max_model_len")
    if type(context) is not int:
        raise ServerUnusable(
            f"{name} at {url} is {entry.get('state', 'not loaded')}, and its context is known once it has loaded; "
            f"a request begins that: genai-server chat {url} --model {name}"
        )
    if not arguments.force and (fault := _fault(entry, context)):
        raise ConfigurationError(f"{name} at {url} does not fit a coding agent: {fault}; --force starts it anyway")
    return Target(url, name, context, arguments.api_key or NO_KEY)


def _chosen(models: dict[str, dict[str, Any]], model: str | None, url: str) -> str:
    """Return the name of the model to use: `model` or, if it is None, the first model that chats, if possible one that
    calls tools. `models` has the entries of the server's /v1/models by name.

    Raises ConfigurationError if the server at `url` has no such model.
    """
    if model in models:
        return model
    chat = [name for name, entry in models.items() if entry.get("chat")]
    if model is not None:
        suggestion = did_you_mean(model, models) or f"; it serves {', '.join(models)}"
        raise ConfigurationError(f"no model {quoted(model)} at {url}{suggestion}")
    if not chat:
        served = f"it serves {', '.join(models)}" if models else "it serves none"
        raise ConfigurationError(f"no model at {url} chats; {served}")
    return next((name for name in chat if "tools" in models[name].get("capabilities", ())), chat[0])


def _fault(entry: dict[str, Any], context: int) -> str:
    """Return the reason why a model cannot work with a coding agent, such as a context that is too short; "" if it can.
    `entry` is the model's entry in /v1/models, and `context` its maximum number of tokens.
    """
    if not entry.get("chat"):
        return "it has no chat template"
    if "tools" not in entry.get("capabilities", ()):
        return "it cannot call tools, because its chat template takes none or the form of its calls is not recognized"
    if context < MINIMUM_CONTEXT:
        limit = f" (limit: {entry['limited_by']})" if entry.get("limited_by") else ""
        return f"its context is {context} tokens{limit}, and an agent needs {MINIMUM_CONTEXT}"
    return ""


def _start(program: Program, path: str, target: Target, more: Sequence[str]) -> NoReturn:
    """Replace this process by a coding agent. On Windows, where that is impossible, run the agent and exit with its
    status.

    `path` is the agent's executable file, and `more` are further arguments for it.
    """
    environment = launched_environment(program.environment(target), program.removed)
    command = [path, *program.arguments(target), *more]
    if sys.platform == "win32":
        raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
    else:  # noqa: RET506  mypy takes what follows for unreachable on Windows
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(path, command, environment)
