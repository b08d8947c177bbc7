"""`genai-server profile`: reads the profiles of a server, from its folder or from its address.

`report` shows the time by operator, node and layer, and the slow tokens with the nodes that made them slow. `trace`
merges a session's files into one for https://ui.perfetto.dev, with a track for each token.
"""

import argparse
from pathlib import Path
from urllib.parse import quote

import msgspec

from genai_server.cli.parser import number_from, positive
from genai_server.cli.screen import screen
from genai_server.errors import ConfigurationError, ProfileNotFound
from genai_server.profiles.profile_files import read_profile
from genai_server.profiles.report import SLOW_AT, Report, analyse
from genai_server.profiles.report_formats import as_page, as_text, for_terminal
from genai_server.profiles.trace import write_trace
from genai_server.tools.server_answers import ask, authorization, checked_url, is_address

_TIMEOUT = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's subcommands."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="show where the time went, and which tokens were slow and why")
    report.add_argument("source", metavar="DIR|URL", help="a folder or file of profiles, or a server's address")
    report.add_argument("--session", metavar="ID", help="session to report (default: the last one)")
    report.add_argument(
        "--slow",
        type=number_from(1),
        default=SLOW_AT,
        metavar="X",
        help=f"tokens that took X times the median are slow (default: {SLOW_AT})",
    )
    report.add_argument("--top", type=positive, default=10, metavar="N", help="rows of a table (default: 10)")
    report.add_argument("--api-key", metavar="KEY", help="the server's GENAI_ADMIN_API_KEY")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all figures as JSON")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")
    report.set_defaults(run=run_report)
    trace = commands.add_parser("trace", help="merge a session's files into one trace for https://ui.perfetto.dev")
    trace.add_argument("source", metavar="DIR|URL", help="a folder or file of profiles, or a server's address")
    trace.add_argument("out", type=Path, metavar="OUT.json")
    trace.add_argument("--session", metavar="ID", help="session to export (default: the last one)")
    trace.add_argument("--api-key", metavar="KEY", help="the server's GENAI_ADMIN_API_KEY")
    trace.set_defaults(run=run_trace)


def run_report(arguments: argparse.Namespace) -> int:
    """Print or write the report. Raises ProfileNotFound, ServerUnusable and ConfigurationError."""
    report = _report(arguments)
    if arguments.html is not None:
        try:
            arguments.html.write_text(as_page(report), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--html={arguments.html}: cannot be written: {error.strerror}") from None
    elif arguments.json:
        print(msgspec.json.encode(report).decode())
    elif (console := screen()) is None:
        print(as_text(report, arguments.top))
    else:
        from genai_server.cli.screen import print_report

        print_report(console, for_terminal(report, console.width, arguments.top))
    return 0


def run_trace(arguments: argparse.Namespace) -> int:
    """Write the trace; returns the exit status. Raises ProfileNotFound, ServerUnusable and ConfigurationError."""
    try:
        size = _write_trace(arguments)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    print(f"{arguments.out}: {size}; open it with https://ui.perfetto.dev")
    return 0


def _write_trace(arguments: argparse.Namespace) -> str:
    """Write the trace of a profile session, from a profile folder or from a server. Returns a phrase with the size of
    the trace.

    Raises ProfileNotFound, ServerUnusable, ConfigurationError and OSError.
    """
    if _is_server(arguments.source):
        return f"{arguments.out.write_bytes(_answer(arguments, 'trace'))} bytes"
    profile = read_profile(Path(arguments.source), arguments.session)
    if arguments.out.exists() and any(arguments.out.samefile(profile.folder / entry.file) for entry in profile.passes):
        raise ConfigurationError(f"{arguments.out} is a file of the profile")
    with arguments.out.open("wb") as out:
        events = write_trace(profile, out)
    return f"{len(profile.passes)} passes, {events} events"


def _report(arguments: argparse.Namespace) -> Report:
    """Return the report about a profile session, from a profile folder or from a server. Raises ProfileNotFound and
    ServerUnusable.
    """
    if not _is_server(arguments.source):
        return analyse(read_profile(Path(arguments.source), arguments.session), arguments.slow)
    try:
        return msgspec.json.decode(_answer(arguments, f"report?slow={arguments.slow}"), type=Report)
    except msgspec.DecodeError as error:
        raise ProfileNotFound(f"{arguments.source}: {error}") from None


def _is_server(source: str) -> bool:
    return is_address(source)


def _answer(arguments: argparse.Namespace, suffix: str) -> bytes:
    """Return a server's response about a profile session: to a GET request for the session's path followed by `suffix`.

    Raises ServerUnusable.
    """
    path = f"/v1/admin/profiles/{quote(arguments.session or 'latest', safe='')}/{suffix}"
    return ask(checked_url(arguments.source), path, authorization(arguments.api_key), _TIMEOUT)
