"""The message that `genai-server serve` prints in a terminal when the server has started: its addresses, its models,
and a command to try first. `url_of` returns the server's URL.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genai_server import __version__
from genai_server.cli.screen import show
from genai_server.config.setting_form import AUTO
from genai_server.config.settings import Settings
from genai_server.engine.model.files import has_chat_template, model_info, read_config
from genai_server.errors import ModelDirectoryError
from genai_server.http.api_keys import load_keys
from genai_server.messages.server_status import EngineStatus
from genai_server.model_files.model_memory import advice_for_context
from genai_server.model_files.pooling_model import ENDPOINTS, Task, read_pooling_model, task_of
from genai_server.model_files.speech_and_vision import transcribes
from genai_server.options.providers import CPU

# Hosts that stand for all addresses of the machine, each with one by which its own programs reach it.
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
_TITLE = 18
# A request for each task whose requests are JSON.
_EXAMPLES: dict[Task, tuple[str, dict[str, Any]]] = {
    Task.GENERATE: ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40}),
    Task.EMBED: ("/v1/embeddings", {"input": "Paris is the capital of France."}),
    Task.RERANK: (
        "/v1/rerank",
        {"query": "Which is about France?", "documents": ["It will rain.", "Paris is the capital of France."]},
    ),
}


def url_of(host: str, port: int, *, is_https: bool) -> str:
    """Return the URL by which a program on this machine reaches a server that listens on this host and port. For a host
    that stands for all addresses, such as 0.0.0.0, it names the loopback address.
    """
    name = _ALL_ADDRESSES.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if is_https else 'http'}://{name}:{port}"


def welcome(settings: Settings, port: int, engines: Sequence[EngineStatus] = ()) -> None:
    """Print the welcome message for a server that listens on `port`. `engines` are the states of its engines, from
    which the message takes the context length of each model that has been loaded.
    """
    url = url_of(settings.host, port, is_https=bool(settings.tls_cert))
    everywhere = "   on every address of this machine" if settings.host in _ALL_ADDRESSES else ""
    show("")
    show(f"genai-server {__version__} is ready; ", ("Ctrl-C", "bold"), " stops it")
    show("")
    _line("address", f"{url}{everywhere}")
    if settings.ui:
        _line("web page", f"{url}/")
    for name, path in settings.served.items():
        loaded = [engine for engine in engines if engine.model == name and engine.max_length]
        shortest = min(loaded, key=lambda engine: engine.max_length, default=None)
        length = _context_length(path)
        _line("model", f"{name} on {settings.device}{_context(settings, path, length, shortest)}")
        for engine in loaded:
            if engine.cores is not None and engine.device != CPU:
                _line("", f"{engine.device} has {engine.cores.in_words()}")
        if shortest is not None and settings.max_length == AUTO:
            for advice in filter(None, [advice_for_context(shortest.max_length, length)]):
                _line("", advice, "yellow")
    _line("first", _first(settings, url), "bold green")
    _line("OpenAI clients", f"base URL {url}/v1")
    _line("Anthropic clients", f"base URL {url}")
    _line("Ollama clients", f"base URL {url}")
    if load_keys(settings).required:
        _line("API key", "one of GENAI_API_KEYS or GENAI_API_KEY_FILE")
    else:
        _line("API key", "none is needed; clients that insist on one may send anything")
        _line("all endpoints", f"{url}/docs")
    show("")


def _line(title: str, text: str, style: str = "") -> None:
    show("  ", (f"{title:<{_TITLE}}", "dim"), (text, style))


def _context(settings: Settings, path: str, length: int, shortest: EngineStatus | None) -> str:
    """Return a phrase about a model for the welcome message: the number of tokens in its context or, if it does not
    generate text, what it is for. Returns "" if that is unknown.

    `path` is the model's directory and `length` its context length in tokens, 0 if unknown. `shortest` is the status of
    the engine with the least memory for the context; None before engines have loaded.
    """
    try:
        if pooling := read_pooling_model(Path(path)):
            return f", {pooling.summary()}"
        if transcribes(Path(path)):
            return ", transcripts of recordings"
    except (ModelDirectoryError, LookupError, TypeError, ValueError):
        return ""
    if shortest is None or shortest.max_length >= length > 0:
        max_tokens = settings.within(length or None)
        return f", context {max_tokens} tokens" if max_tokens else ""
    of = f" of the model's {length}" if length else ""
    return f", context {shortest.max_length} tokens{of} ({shortest.limited_by})"


def _context_length(path: str) -> int:
    """Return the context length in tokens of the model in the directory `path`; 0 if it is unknown or the model does
    not generate text.
    """
    try:
        if task_of(Path(path)) is not Task.GENERATE:
            return 0
        return model_info(read_config(Path(path))).context_length
    except (ModelDirectoryError, LookupError, TypeError, ValueError):
        return 0


def _first(settings: Settings, url: str) -> str:
    """Return a shell command with which the user can try the server at `url`: a chat, or curl for models without one.
    It uses the first model that generates text, or else the first model.
    """
    tasks = {name: task_of(Path(path)) for name, path in settings.served.items()}
    name = next((name for name, task in tasks.items() if task is Task.GENERATE), next(iter(tasks)))
    task, key = tasks[name], load_keys(settings).required
    if task is Task.GENERATE and (settings.chat_template_of(name) or _has_template(Path(settings.served[name]))):
        # It chooses the same model.
        return f"{_command()} chat {url}{' --api-key KEY' if key else ''}"
    header = "-H 'authorization: Bearer KEY' " if key else ""
    if task is Task.TRANSCRIBE:
        return f"curl {url}{ENDPOINTS[task][0]} {header}-F model={shlex.quote(name)} -F file=@recording.mp3"
    endpoint, fields = _EXAMPLES[task]
    body = json.dumps({"model": name} | fields)
    return f"curl {url}{endpoint} {header}-H 'content-type: application/json' -d {shlex.quote(body)}"


def _has_template(path: Path) -> bool:
    try:
        return has_chat_template(path)
    except ModelDirectoryError:  # a scripted device takes messages
        return True


def _command() -> str:
    """Return the shell command that runs this copy of genai-server from the current directory, as the user would type
    it.
    """
    script = Path(sys.executable).with_name("genai-server.exe" if sys.platform == "win32" else "genai-server")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m genai_server"
    if shutil.which(script.name) == str(script):
        return script.name
    cwd = Path.cwd()
    return shlex.quote(str(script.relative_to(cwd) if script.is_relative_to(cwd) else script))
