"""The Ray Serve application: an ingress (the deployment that receives all HTTP requests), and a deployment of replicas
of the server for each model.

Ray Serve imports `build` by name, from the configuration that `serve deploy` reads.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from genai_server import __version__
from genai_server.config.settings import Settings
from genai_server.config.sources import NAMES, load_settings
from genai_server.errors import ConfigurationError
from genai_server.http.middleware.request_lifetime import CANCELLED_SEND_TIMEOUT
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.ray_serve.ingress import Ingress
from genai_server.ray_serve.model_choice import ModelNames
from genai_server.ray_serve.ray_internals import with_version
from genai_server.ray_serve.replica import Replica

# Settings of Serve's proxies, which neither ingress nor replicas read.
SERVE_SETTINGS = frozenset({"host", "port", "tls_cert", "tls_key"})
_ROUTER = "genai_server.ray_serve.ray_internals.PrefixRouter"
# Calls other than generations that a full replica still takes: admin calls, and reading.
_SPARE_CALLS = 32
# Requests that wait in the ingress for a replica. Each does for some milliseconds, even where replicas are idle.
_MAX_QUEUED = 1_000
# In seconds.
_HEALTH_EVERY = 2.0
_HEALTH_TIMEOUT = 10.0
_DRAIN_EVERY = 0.5
# Maximum number of requests at once in the ingress; high enough that it never refuses one.
_MAX_IN_INGRESS = 100_000
_DEFAULT_CONFIG = "genai-server.toml"


def build(args: Mapping[str, Any]) -> Any:
    """Return the Ray Serve application for `args`, a table of settings, named as in genai-server.toml, and `replicas`:
    the number of replicas of each model, such as "2", or "1:4" to scale between 1 and 4.

    Other settings come from the environment, as for `genai-server serve`. Raises ConfigurationError for an unknown name
    or an invalid value.
    """
    options = {name: str(value) for name, value in args.items()}
    replicas = options.pop("replicas", "1")
    if unknown := options.keys() - set(NAMES):
        raise ConfigurationError(f"{', '.join(sorted(unknown))}: not a setting, nor replicas")
    return application(load_settings(options), replicas)


def application(settings: Settings, replicas: str) -> Any:
    """Return the Ray Serve application for these settings, with `replicas` replicas of each model, such as "2", or
    "1:4" to scale.

    Raises ConfigurationError for an invalid `replicas`, and for GENAI_FILES_DIR, because replicas on other nodes would
    not have the files.
    """
    if settings.files_dir:
        raise ConfigurationError(
            f"GENAI_FILES_DIR={settings.files_dir}: files and batches need one server, and replicas are several; "
            "serve them with genai-server serve"
        )
    if settings.api_key_file:
        settings = settings.model_copy(update={"api_key_file": _absolute(settings.api_key_file)})
    models = {name: _deployment(settings, name, replicas) for name in settings.served}
    ingress = with_version(
        serve.deployment(serve.ingress()(Ingress), name="Ingress"),
        _version(settings),
        max_ongoing_requests=_MAX_IN_INGRESS,
        graceful_shutdown_timeout_s=_time_to_stop(settings),
        graceful_shutdown_wait_loop_s=_DRAIN_EVERY,
        health_check_period_s=_HEALTH_EVERY,
        # So that it runs next to Ray's own processes.
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(ModelNames(settings, tasks_of(settings)), models)


def settings_of(settings: Settings, model: str) -> Settings:
    """Return the settings for the replicas of a model, which are those of a server that serves only this model.

    A replica cannot see where Ray Serve's proxies listen, so it never counts as bound to loopback.
    """
    aliases = [alias for alias, name in settings.aliases.items() if name == model]
    config = settings.config or (_DEFAULT_CONFIG if Path(_DEFAULT_CONFIG).is_file() else "")
    changes = {
        "host": "0.0.0.0",
        "models": f"{model}={_absolute(settings.served[model])}",
        "adapters": ",".join(f"{name}={_absolute(file)}" for name, file in settings.adapter_files(model).items()),
        "model_aliases": ",".join(f"{alias}={model}" for alias in aliases),
        "chat_template": settings.chat_template_of(model),
        "draft_model": _absolute(draft) if (draft := settings.draft_model_of(model)) else "",
        "config": _absolute(config) if config else "",
        # The ingress answers browsers, and counts the requests of each key.
        "cors_origins": "",
        "max_concurrent_per_key": 0,
        "rate_per_key": 0,
    }
    return settings.model_copy(update=changes)


def tasks_of(settings: Settings) -> dict[str, Task]:
    """Return the task of each model in the settings, such as generating text or embedding, by the model's name. It is
    read from the model's files on this machine.
    """
    return {name: task_of(Path(path)) for name, path in settings.served.items()}


def max_replicas(replicas: str) -> int:
    """Return the maximum number of replicas that `replicas` allows, which is a text such as "2", or "1:4" to scale.
    Raises ConfigurationError for other forms.
    """
    return _bounds(replicas)[1]


def scaling(replicas: str, target: int) -> dict[str, Any]:
    """Return the options of a Ray Serve deployment for its number of replicas. `replicas` is a text such as "2", or
    "1:4" to scale between 1 and 4.

    `target` is the number of running requests per replica for which Ray Serve scales. Raises ConfigurationError for
    another form of `replicas`.
    """
    minimum, maximum = _bounds(replicas)
    if ":" not in replicas:
        return {"num_replicas": maximum}
    return {"autoscaling_config": {"min_replicas": minimum, "max_replicas": maximum, "target_ongoing_requests": target}}


def _bounds(replicas: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,3})(?::([1-9]\d{0,3}))?", replicas)
    minimum, maximum = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if minimum > maximum:
        raise ConfigurationError(f"replicas={replicas}: expected a number such as 2, or least and most such as 1:4")
    return minimum, maximum


def _deployment(settings: Settings, model: str, replicas: str) -> Any:
    model_settings = settings_of(settings, model)
    kinds = {device.partition(":")[0] for device in settings.devices}
    deployment = with_version(
        serve.deployment(Replica, name=re.sub(r"[^\w.-]", "-", model)),
        _version(model_settings),
        **scaling(replicas, settings.max_batch_size),
        # All that the replica itself does not refuse, so that its own queue is the limit.
        max_ongoing_requests=settings.max_batch_size + settings.max_queue + _SPARE_CALLS,
        max_queued_requests=_MAX_QUEUED,
        graceful_shutdown_timeout_s=_time_to_stop(settings),
        graceful_shutdown_wait_loop_s=_DRAIN_EVERY,
        health_check_period_s=_HEALTH_EVERY,
        health_check_timeout_s=_HEALTH_TIMEOUT,
        ray_actor_options={"num_cpus": settings.threads or 1, "num_gpus": int("cuda" in kinds)},
        request_router_config=RequestRouterConfig(
            request_router_class=_ROUTER,
            request_router_kwargs={"imbalanced_threshold": max(1, settings.max_batch_size // 2), "do_eviction": True},
        ),
    )
    return deployment.bind(model_settings)


def _version(settings: Settings) -> str:
    """Return a digest of everything that replicas and ingress read when they start: settings, the key file, the
    configuration file, and the server's version.

    Ray Serve compares it: deploying again with the same version changes the number of replicas without restarting any.
    """
    files = [Path(name) for name in (settings.api_key_file, settings.config) if name]
    parts = [__version__.encode(), settings.model_dump_json(exclude=set(SERVE_SETTINGS)).encode()]
    parts += [file.read_bytes() for file in files if file.is_file()]
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


def _time_to_stop(settings: Settings) -> float:
    return settings.drain_timeout + CANCELLED_SEND_TIMEOUT


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
