"""Checks the settings before a server starts anything, as far as that is possible, so that a wrong setting is reported
at once and in one line. `check_server` makes all checks of `genai-server serve`.

All ways of starting engines run those checks that concern them.
"""

import errno
import importlib.util
import logging
import os
import socket
import ssl
from collections.abc import Set
from pathlib import Path
from tempfile import TemporaryFile

from genai_server.cli.serve.loaders import ReadTexts, load_traces, text_loader
from genai_server.config.setting_form import environment_variable
from genai_server.config.settings import Settings
from genai_server.config.sources import device_options
from genai_server.config.tool_servers import tool_servers
from genai_server.engine.model.files import GIVE_A_TEMPLATE, NO_CHAT_TEMPLATE, check_draft_model
from genai_server.engine.runners.runner_rules import check_runner
from genai_server.errors import ChatTemplateError, ConfigurationError, ModelDirectoryError, in_one_line
from genai_server.http.api_keys import load_keys
from genai_server.http.telemetry import key_usage
from genai_server.hub.repository import could_be_repository
from genai_server.media.audio import recordings
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.model_files.speech_and_vision import Medium
from genai_server.options.providers import is_scripted
from genai_server.store import database
from genai_server.store.database import why_unusable
from genai_server.supervisor.supervisor import planned_cores
from genai_server.system.installation import this_installation
from genai_server.text.codec import TextCodec

log = logging.getLogger(__name__)


def check_server(settings: Settings) -> ReadTexts:
    """Check everything that serving needs: access, tool servers, files, traces, models. Returns the text codecs
    (tokenizer and chat template) that this has loaded, so that they need not be loaded again.

    Raises ConfigurationError for the first fault.
    """
    check_access(settings)
    check_kv_events(settings)
    check_tool_servers(settings)
    check_traces(settings)
    check_storage(settings)
    return check_models(settings)


def bind(settings: Settings, *, backlog: int | None = None) -> socket.socket:
    """Return a socket that listens on the configured address and port. At most `backlog` connections wait to be
    accepted; with None, the system's default applies. Raises ConfigurationError if the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigurationError(_why_not_listening(settings, error)) from error


def _why_not_listening(settings: Settings, error: OSError) -> str:
    host, port = settings.host, settings.port
    if error.errno == errno.EADDRINUSE:
        return f"PORT={port}: in use on {host}, perhaps by another genai-server; --port 0 chooses a free one"
    if error.errno in (errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN):
        return f"HOST={host}: not an address of this machine"
    if error.errno == errno.EACCES:
        return f"PORT={port}: permission denied: ports below 1024 need root; try --port 8002"
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"HOST={host} PORT={port}: cannot listen: {reason.lower()}"


def check_models(settings: Settings) -> ReadTexts:
    """Check that all configured models can be served: their files, devices, adapters, chat templates and draft models.
    Raises ConfigurationError for the first fault.

    Returns the text codecs (tokenizer and chat template) of the first model, because this model is certainly loaded at
    the start; the codecs are keyed by model directory and chat template.
    """
    check_cores(settings)
    load_text = text_loader(settings)
    texts: ReadTexts = {}
    for name, path in settings.served.items():
        check_runners(settings, name)
        for adapter, file in settings.adapter_files(name).items():
            if not Path(file).is_file():
                raise ConfigurationError(f"GENAI_ADAPTERS: {name}:{adapter}={file}: there is no such file")
        try:
            codecs = load_text(path, settings.devices, settings.chat_template_of(name))
        except ModelDirectoryError as error:
            setting = f"GENAI_MODELS: {name}=" if settings.models else "GENAI_MODEL_DIR="
            remedy = "" if Path(path).is_dir() else f"; {how_to_get(path, settings.models_path)}"
            raise ConfigurationError(f"{setting}{path}: {error}{remedy}") from None
        except ChatTemplateError as error:
            raise ConfigurationError(f"GENAI_CHAT_TEMPLATE: {error}") from None
        except ConfigurationError:
            raise
        except Exception as error:  # a library reads unchecked files
            raise ConfigurationError(f"the model in {path} cannot be used: {in_one_line(error)}") from None
        check_draft_model_of(settings, name)
        if any(map(takes_recordings, codecs.values())) and not recordings.is_installed():
            log.warning(
                "model %s takes recordings, which cannot be decoded: install what that needs: %s",
                name,
                this_installation().extra_command(recordings.EXTRA),
            )
        if any(codec.task is Task.GENERATE and not codec.has_chat_template for codec in codecs.values()):
            log.warning("model %s %s; %s", name, NO_CHAT_TEMPLATE, GIVE_A_TEMPLATE)
        texts = texts or {(path, settings.chat_template_of(name)): codecs}
    return texts


def takes_recordings(codec: TextCodec) -> bool:
    """Whether a model, as its text codec shows, transcribes recordings or takes audio clips in chats."""
    return codec.speech is not None or (codec.vision is not None and codec.vision.medium is Medium.AUDIO)


def how_to_get(path: str, models: Path) -> str:
    """Return a sentence that tells the user how to get a model if the configured model directory `path` does not exist.
    `models` is the folder of downloaded models.
    """
    if (models / path).is_dir():
        return f"genai-server serve {path} serves the one in {models}"
    if could_be_repository(path):
        return f"if that is a repository, genai-server serve {path} fetches it"
    return "genai-server serve OWNER/NAME fetches a model, such as microsoft/Phi-4-mini-instruct-onnx"


def check_runners(settings: Settings, name: str) -> None:
    """Check that each device of the configured model `name` supports the configured runner (the part of an engine that
    computes tokens) and options. Raises ConfigurationError if one does not.
    """
    for device, options in device_options(settings, name).items():
        check_runner(device, Path(settings.served[name]), settings, options)


def check_cores(settings: Settings) -> None:
    """Check that each configured device of the form `cpu:NODE` names a NUMA node that this process may use. Raises
    ConfigurationError if one does not.
    """
    try:
        planned_cores(settings.devices)
    except ConfigurationError as error:
        raise ConfigurationError(f"GENAI_DEVICE={settings.device}: {error.message}") from None


def check_draft_model_of(settings: Settings, name: str) -> None:
    """Check that the configured model `name` and its draft model (for speculative decoding), if it has one, have the
    same vocabulary. Raises ConfigurationError if they do not.
    """
    draft = settings.draft_model_of(name)
    if not draft or task_of(Path(settings.served[name])).why_no_drafts:
        return
    if not all(map(is_scripted, settings.devices)):
        try:
            check_draft_model(Path(settings.served[name]), Path(draft))
        except ConfigurationError as error:
            raise ConfigurationError(f"GENAI_DRAFT_MODEL={error.message}") from None


def check_kv_events(settings: Settings) -> None:
    """Raise ConfigurationError if the settings ask the server to publish events of its prefix cache, but the libraries
    for that are missing.
    """
    missing = [name for name in ("zmq", "cbor2") if importlib.util.find_spec(name) is None]
    if settings.kv_events and missing:
        raise ConfigurationError(
            f"GENAI_KV_EVENTS={settings.kv_events}: {' and '.join(missing)} missing; install what it needs: "
            f"{this_installation().extra_command('kv-events')}"
        )


def check_tool_servers(settings: Settings) -> None:
    """Raise ConfigurationError if the tool servers (MCP servers whose tools models may call) are configured wrongly, or
    if the package mcp, which they need, is missing.
    """
    database = "[mcp.NAME] in the configuration file" if tool_servers(settings) else ""
    needed_by = database or ("GENAI_MCP_HOSTS" if settings.allowed_mcp_hosts else "")
    if needed_by and importlib.util.find_spec("mcp") is None:
        command = this_installation().extra_command("mcp")
        raise ConfigurationError(f"{needed_by}: mcp missing; install what it needs: {command}")


def check_storage(settings: Settings) -> None:
    """Raise ConfigurationError if files, stored responses or usage cannot be written where the settings say.

    If profiles cannot be written, only a warning is logged, because serving does not need them.
    """
    if settings.files_dir:
        _check_files(settings)
        _check_file("files_dir", settings.files_dir, settings.store_file, database.KNOWN_VERSIONS)
    else:
        _check_file("response_store_file", settings.response_store_file, settings.store_file, database.KNOWN_VERSIONS)
    usage_file = Path(settings.usage_file) if settings.usage_file else None
    _check_file("usage_file", settings.usage_file, usage_file, key_usage.KNOWN_VERSIONS)
    if why := why_no_profiles(settings):
        log.warning("%s; nothing can be profiled", why)


def why_no_profiles(settings: Settings) -> str | None:
    """Return the reason why profiles cannot be written to the configured folder; None if they can. The folder is not
    created.
    """
    folder = Path(settings.profile_dir).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with TemporaryFile(dir=existing):
            return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return f"GENAI_PROFILE_DIR={settings.profile_dir}: cannot be written: {reason}"


def _check_files(settings: Settings) -> None:
    """Create the folder for files of the API (/v1/files).

    Raises ConfigurationError if nothing can be written there, or if another file for stored responses is configured,
    since the folder contains such a file.
    """
    folder, responses = Path(settings.files_dir), settings.response_store_file
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigurationError(f"GENAI_FILES_DIR={settings.files_dir}: cannot be written: {reason}") from None
    if responses and settings.store_file is not None:
        has_to_move = Path(responses).exists() and not settings.store_file.exists()
        move = f"move the file there (mv {responses} {settings.store_file}) and " if has_to_move else ""
        raise ConfigurationError(
            f"GENAI_RESPONSE_STORE_FILE={responses}: with GENAI_FILES_DIR, responses are stored in "
            f"{settings.store_file}; {move}remove this setting"
        )


def _check_file(setting: str, value: str, path: Path | None, versions: Set[int]) -> None:
    """Raise ConfigurationError if the server cannot use the SQLite file at `path`, which a setting names. None stands
    for no file.

    `setting` and `value` are the setting's name and value, for the message; `versions` are the versions of the file's
    format that the server can open.
    """
    if path is not None and (why := why_unusable(path, versions)):
        raise ConfigurationError(f"{environment_variable(setting)}={value}: {why}")


def check_traces(settings: Settings) -> None:
    """Raise ConfigurationError if the settings name an endpoint for OpenTelemetry traces of requests, but traces cannot
    be exported.
    """
    if (traces := load_traces(settings)) is not None:
        traces.close()


def lone_reloader(settings: Settings) -> str:
    """Return a warning for the user if the settings ask for several API processes and for reloading changed source
    files, which is impossible at the same time; "" if they do not.
    """
    if not (settings.reload and settings.workers > 1):
        return ""
    return f"RELOAD=true WORKERS={settings.workers}: reloading works with one API process only; one is started"


def check_access(settings: Settings) -> None:
    """Check the settings about access to the server: API keys, TLS files and address. Without API keys the server must
    be reachable from this machine only, unless the setting `insecure` allows everybody.

    Raises ConfigurationError if they are wrong.
    """
    keys = load_keys(settings)
    if keys.required and not list(keys):
        log.warning("%s has no API key: requests are refused until it has one", settings.api_key_file)
    if not (keys.required or settings.on_loopback or settings.insecure):
        raise ConfigurationError(
            f"HOST={settings.host}: others can reach the server, and there are no API keys; set GENAI_API_KEYS or "
            "GENAI_API_KEY_FILE (genai-server key NAME makes a key), or serve everybody with --insecure"
        )
    if settings.tls_key and not settings.tls_cert:
        raise ConfigurationError(f"GENAI_TLS_KEY={settings.tls_key}: GENAI_TLS_CERT must name its certificate")
    if settings.tls_cert:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_cert, settings.tls_key or None, _no_password
            )
        except (OSError, ValueError) as error:  # one of OpenSSL is an OSError
            key = f" GENAI_TLS_KEY={settings.tls_key}" if settings.tls_key else ""
            reason = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
            if isinstance(error, ssl.SSLError):
                reason = "not a certificate and its private key in PEM form"
            raise ConfigurationError(f"GENAI_TLS_CERT={settings.tls_cert}{key}: cannot be used: {reason}") from None


def _no_password() -> str:
    raise ValueError("the private key has a password")
