"""`genai-server doctor`: looks at everything that serving needs, with the settings of serve, and says what to do.

Each line is ok, warn or fail. The exit status is 1 if anything failed, so that serving would.
"""

import argparse
from collections.abc import Iterator

from genai_server.cli import findings
from genai_server.cli.findings import FAIL, Finding
from genai_server.config import Settings, add_options, load_settings
from genai_server.errors import ConfigurationError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand and its options."""
    parser = subparsers.add_parser("doctor", help="check what serving needs", description=__doc__)
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each finding; returns 1 if one is a failure."""
    failed = False
    for finding in examine(vars(arguments)):
        failed |= finding.state == FAIL
        print(f"{finding.state:<5} {finding.subject}: {finding.found}", flush=True)
        if finding.remedy:
            print(f"      → {finding.remedy}", flush=True)
    return 1 if failed else 0


def examine(options: dict[str, str | None]) -> Iterator[Finding]:
    """All findings; without right settings only those that need none."""
    yield from findings.versions()
    yield from findings.providers()
    try:
        settings = load_settings(options)
    except ConfigurationError as error:
        yield Finding(FAIL, "settings", error.message, "correct it; README has a table of all settings")
        return
    seen = []
    for finding in findings.checked_settings(settings):
        seen.append(finding.state)
        yield finding
    if FAIL not in seen:
        yield from _with(settings)


def _with(settings: Settings) -> Iterator[Finding]:
    yield from findings.cores(settings)
    models = [
        settings.model_copy(update={"models": "", "model_name": name, "model_dir": path})
        for name, path in settings.served.items()
    ]
    for model in models:
        yield from findings.memory(model)
    yield from findings.port(settings)
    yield from findings.cache(settings)
    if all(device.startswith("scripted") for device in settings.devices):
        yield from findings.devices(settings)
        return
    broken = False
    for model in models:
        for finding in findings.model(model):
            broken |= finding.state == FAIL
            yield finding
    if not broken:  # else each device would only say so once more
        yield from findings.devices(settings)
