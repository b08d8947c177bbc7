"""Whether the server in this container takes work: status 0 if /readyz answers 200. The Dockerfile's HEALTHCHECK.

The times for loading a model and for restarting an engine are options of HEALTHCHECK. This program reads the settings
as the server does, from the arguments of the container's first process too, and so follows the port, the address and
TLS wherever they were set. A process's number may be given, for use elsewhere (on Linux).
"""

import argparse
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

from genai_server.config.settings import Settings
from genai_server.config.sources import add_options, load_settings

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_TIMEOUT = 4.0
# Bytes of an answer that is not 200.
_MAX_SHOWN = 1000


def main() -> None:
    """Ask; ends with status 1 and the reason, which docker keeps."""
    settings = settings_of(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    # It is this machine: no proxy in between, and no need to know its certificate.
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl._create_unverified_context()))
    try:
        urllib.request.build_opener(*handlers).open(url_of(settings), timeout=_TIMEOUT).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"{url_of(settings)}: {error.code} {error.read(_MAX_SHOWN).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"{url_of(settings)}: {error}")


def settings_of(process: int) -> Settings:
    """The settings of the server that a process runs, or starts (`docker run --init`)."""
    words = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
    parser = argparse.ArgumentParser()
    add_options(parser)
    options, _ = parser.parse_known_args(words[words.index("serve") + 1 :] if "serve" in words else [])
    return load_settings(vars(options))


def url_of(settings: Settings) -> str:
    """Where the server answers this machine."""
    host = _ANY.get(settings.host, settings.host)
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if settings.tls_cert else ''}://{shown}:{settings.port}/readyz"


if __name__ == "__main__":
    main()
