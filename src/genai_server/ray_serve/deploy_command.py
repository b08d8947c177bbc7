"""The command `genai-server deploy ray`, which deploys replicas of the server on Ray Serve, in a cluster or on this
machine.

The command also takes the options of `genai-server serve`, whose --help lists them.
"""

import argparse
import contextlib
import importlib.util
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genai_server.cli.serve.preflight import bind, check_access, check_models
from genai_server.cli.serve.welcome import url_of
from genai_server.config.environment import keep_ray_local
from genai_server.config.settings import Settings
from genai_server.config.sources import add_options, load_settings
from genai_server.errors import ConfigurationError
from genai_server.logs import configure_logging
from genai_server.system.addresses import is_loopback
from genai_server.system.installation import this_installation

_NAME = "genai-server"
# They come from the environment of the cluster's processes, and are in no file.
_SECRETS = {"api_keys", "admin_api_key"}
# Bytes of Ray's object store in a cluster on this machine. It holds only bodies and answers.
_OBJECT_BYTES = 200 * 2**20
# Timeout of the check that a given cluster exists.
_CONNECT_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `genai-server deploy ray` to the argument parser."""
    parser.usage = "%(prog)s ray [OPTION]… [OPTION OF SERVE]…"
    parser.add_argument("target", metavar="ray", choices=["ray"], help="where to: ray")
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of a Ray cluster, such as auto or head:6379; without it, one starts here",
    )
    parser.add_argument(
        "--replicas", metavar="N|MIN:MAX", default="1", help="of each model, such as 2, or 1:4 to scale"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the configuration for `serve deploy` instead"
    )
    add_options(parser, listed=())
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run `genai-server deploy ray`: deploy the application on Ray Serve, and return the exit status. Without
    --address, it starts Ray on this machine and serves until a signal arrives.

    Raises ConfigurationError if the settings are invalid or Ray is not installed.
    """
    options = vars(arguments)
    settings = load_settings(options)
    configure_logging(settings.log_level, settings.log_format)
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(f"Ray is not installed; install it: {this_installation().extra_command('ray')}")
    if arguments.print_config:
        print(configuration(settings, arguments.replicas), end="")
        return 0
    check_access(settings)
    check_models(settings)
    if arguments.address is None:
        # Ray's proxies would share a port with those of another cluster.
        bind(settings).close()
    if arguments.address is None or is_loopback(arguments.address.rpartition(":")[0]):
        keep_ray_local()
    return _deploy(settings, arguments.replicas, arguments.address)


def configuration(settings: Settings, replicas: str) -> str:
    """Return the YAML file for Ray's command `serve deploy`, with all settings that differ from the default, except API
    keys. `replicas` is the number of replicas of each model, such as "2", or "1:4" to scale.

    Raises ConfigurationError for an invalid `replicas`.
    """
    import yaml

    from genai_server.ray_serve.application import SERVE_SETTINGS, max_replicas

    max_replicas(replicas)
    plain = Settings.model_validate({})
    changed = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in settings.model_dump().items()
        if value != getattr(plain, name) and name not in _SECRETS | SERVE_SETTINGS
    }
    application = {
        "name": _NAME,
        "route_prefix": "/",
        "import_path": "genai_server.ray_serve.application:build",
        "args": {"replicas": replicas, **changed},
    }
    config = {
        "proxy_location": "EveryNode",
        "http_options": _http_options(settings),
        "applications": [application],
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


def _http_options(settings: Settings) -> dict[str, Any]:
    """Return the options of Ray Serve's HTTP proxies: the address and the TLS certificate from the settings."""
    options: dict[str, Any] = {"host": settings.host, "port": settings.port}
    if settings.tls_cert:
        options |= {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key or settings.tls_cert}
    return options


def _check_cluster(address: str) -> None:
    """Raise ConfigurationError if nothing listens at `address`, the host and port of a Ray cluster, because Ray itself
    would try to connect for two minutes. Addresses of another form, such as `auto`, are not checked.
    """
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = (getattr(error, "strerror", None) or "not an address").lower()
        raise ConfigurationError(f"--address {address}: no Ray cluster answers there: {why}") from None


def _deploy(settings: Settings, replicas: str, address: str | None) -> int:
    # Ray takes seconds to import.
    import ray
    from ray import serve

    from genai_server.ray_serve.application import application, max_replicas
    from genai_server.ray_serve.ray_internals import http_config

    deployed = application(settings, replicas)
    if address is None:
        ray.init(
            address="local",
            include_dashboard=False,
            # Ray counts cores only to place replicas; each is to have its place here.
            num_cpus=max_replicas(replicas) * len(settings.served) * (settings.threads or 1) + 1,
            object_store_memory=_OBJECT_BYTES,
        )
        # In place of Ray's handlers. A deployment that waits for devices which are not there must end, too.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
    else:
        _check_cluster(address)
        try:
            ray.init(address=address)
        except (ConnectionError, ValueError) as error:
            raise ConfigurationError(f"--address {address}: {error}") from None
    try:
        serve.start(http_options=_http_options(settings))
        try:
            serve.run(deployed, name=_NAME, route_prefix="/")
        except RuntimeError as error:
            raise ConfigurationError(f"{error} The log of Ray Serve has the reason.") from None
        where = ray.get_runtime_context().gcs_address
        # Ray has taken over the log. Serve's proxies keep the address with which they were first started.
        proxies = http_config()
        url = url_of(proxies.host, proxies.port, is_https=bool(proxies.ssl_certfile))
        print(f"ready on {url}; the address of the cluster is {where}", flush=True)
        if address is None:
            threading.Event().wait()
    except KeyboardInterrupt:
        if address is not None:
            raise
        print(f"stopping: running answers have up to {settings.drain_timeout:g} s; Ctrl-C again ends them", flush=True)
        # A second signal cuts the drain short. Shutting down at once would end the proxies, and with them all streams.
        with contextlib.suppress(KeyboardInterrupt):
            _drain(serve.delete)
    finally:
        ray.shutdown()
    return 0


def _drain(delete: Callable[[str], None]) -> None:
    """Delete the Ray Serve application by calling `delete`, and wait until its replicas have ended. Ray Serve kills
    replicas that do not end in time.
    """
    while True:
        # It waits for a minute.
        with contextlib.suppress(TimeoutError):
            delete(_NAME)
            return
