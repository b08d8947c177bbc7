"""`genai-server doctor`: checks everything that serving needs, and suggests remedies.

It takes MODEL and the options of `genai-server serve`, whose --help lists them, and the same environment and files, but
fetches nothing. Each line is ok, warn or fail. The exit status is 1 if anything failed; serving would then fail, too.
"""

import argparse
import logging
from collections.abc import Iterator

from genai_server.cli.model_argument import check_no_other, find
from genai_server.cli.screen import show
from genai_server.config.settings import Settings
from genai_server.config.sources import add_options, in_typed_names, load_settings
from genai_server.errors import ConfigurationError
from genai_server.options.providers import is_scripted
from genai_server.tools.doctor import checks
from genai_server.tools.doctor import checks as models
from genai_server.tools.doctor.checks import FAIL, OK, WARN, Finding

_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.usage = "%(prog)s [MODEL] [OPTION OF SERVE]…"
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model directory, or the name of a fetched one")
    add_options(parser, listed=())
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each finding; returns the exit status, 1 if one is a failure."""
    # The findings include what the engines' supervisor would log.
    logging.getLogger("genai_server").addHandler(logging.NullHandler())
    failed = False
    options = vars(arguments)
    for finding in examine(options):
        failed |= finding.state == FAIL
        text = in_typed_names(finding.found, options)
        show((f"{finding.state:<5}", _STYLES[finding.state]), f" {finding.subject}: {text}")
        if finding.remedy:
            show(f"      → {in_typed_names(finding.remedy, options)}")
    return 1 if failed else 0


def examine(options: dict[str, str | None]) -> Iterator[Finding]:
    """Yield all findings. If the settings are wrong, only those that do not depend on settings."""
    has_library = True
    for finding in checks.versions():
        has_library &= finding.state != FAIL
        yield finding
    if has_library:  # without it there is no ONNX Runtime either
        yield from checks.providers()
    try:
        settings = load_settings(options)
        if model := options.get("model"):
            check_no_other(model, options.get("model_dir"), settings.models)
            settings = load_settings({**options, "model_dir": str(find(model, settings.models_path))})
    except ConfigurationError as error:
        yield Finding(FAIL, "settings", error.message, "correct it; see docs/settings.md")
        return
    wrong = False
    for finding in models.checked_settings(settings):
        wrong |= finding.state == FAIL
        yield finding
    if not wrong:
        yield from _with(settings, has_library=has_library)


def _with(settings: Settings, *, has_library: bool) -> Iterator[Finding]:
    yield from checks.cores(settings)
    yield from checks.memory(settings)
    yield from checks.port(settings)
    yield from checks.cache(settings)
    if all(map(is_scripted, settings.devices)):
        yield from models.devices(settings)
        return
    broken = not has_library
    for name in settings.served:
        for finding in models.model(settings, name, with_text=has_library):
            broken |= finding.state == FAIL
            yield finding
    if not broken:  # a broken model would only fail again on each device
        yield from models.devices(settings)
