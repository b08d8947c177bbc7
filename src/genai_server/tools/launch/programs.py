"""The coding agents that `genai-server launch` starts, and how each is configured for a server.

This is the only place for these details: docs/guides/coding-agents.md contains the lines of `recipe`, which a test
compares, and scripts/check_clients.py starts the agents in both ways. Each agent is configured by its environment and
arguments only, so that no configuration file of the user is read in their place or changed.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# What stands for an API key on a server without keys: agents refuse an empty one.
NO_KEY = "none"
# Tokens of context below which an agent's instructions, tools and first files hardly fit.
MINIMUM_CONTEXT = 32_768
# The part of a context that is kept for an answer, and the most of it.
_ANSWER_SHARE, _LONGEST_ANSWER = 8, 8192
_WIDTH = 110


@dataclass(frozen=True)
class Target:
    """The server and the model that an agent uses."""

    # The server's URL, without /v1.
    url: str
    model: str
    # Maximum tokens of prompt and answer together.
    context: int
    api_key: str = NO_KEY

    @property
    def answer(self) -> int:
        """The number of tokens of the context that are reserved for an answer."""
        return min(self.context // _ANSWER_SHARE, _LONGEST_ANSWER)


@dataclass(frozen=True)
class Program:
    """A coding agent for the terminal, and how it is started with a server."""

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
    """Return the shell commands that start a program with further arguments `more`."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in program.environment(target).items()]
    if program.removed:
        lines.insert(0, f"unset {' '.join(program.removed)}")
    return "\n".join([*lines, _wrapped([program.command, *program.arguments(target), *more])]) + "\n"


def _wrapped(words: Sequence[str]) -> str:
    """Join the words of a command, with line breaks so that lines fit the width of a documentation page.

    An option and its value stay on one line.
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
    """Quote a word for a shell. Text with several words gets double quotes if these suffice, as people write it."""
    is_plain = all(letter.isalnum() or letter in " .,:;?-" for letter in word)
    return f'"{word}"' if " " in word and is_plain else shlex.quote(word)
