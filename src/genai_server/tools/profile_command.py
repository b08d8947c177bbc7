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
    """Add the subcommands `report` and `trace` of `genai-server profile` to `parser`, each with its options and the
    function that executes it.
    """
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
    """Execute `genai-server profile report`: print the report about a profile session as text or JSON, or write it as
    an HTML page. `arguments` are the parsed command line. Returns the exit status.

    Raises ProfileNotFound if there is no such session, ServerUnusable if the server does not answer, and
    ConfigurationError if the page cannot be written.
    """
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
    """Execute `genai-server profile trace`: merge the files of a profile session into one trace file. `arguments` are
    the parsed command line. Returns the exit status.

    Raises ProfileNotFound if there is no such session, ServerUnusable if the server does not answer, and
    ConfigurationError if the file cannot be written.
    """
    try:
        size = _write_trace(arguments)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    print(f"{arguments.out}: {size}; open it with https://ui.perfetto.dev")
    return 0


def _write_trace(arguments: argparse.Namespace) -> str:
    """Write the trace of the profile session that the parsed command line names, from a profile folder or from a
    running server. Returns a phrase with the size of the trace, for the user.

    Raises ProfileNotFound if there is no such session, ServerUnusable if the server does not answer, ConfigurationError
    if the trace would replace a file of the profile, and OSError if it cannot be written.
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
    """Return the report about the profile session that the parsed command line names, from a profile folder or from a
    running server.

    Raises ProfileNotFound if there is no such session, and ServerUnusable if the server does not answer.
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
    """Send a GET request about a profile session to the server that the parsed command line names, and return the
    response's body. The request's path is that of the session, followed by `suffix`, such as `trace`.

    Raises ServerUnusable if the server does not answer or responds with an error.
    """
    path = f"/v1/admin/profiles/{quote(arguments.session or 'latest', safe='')}/{suffix}"
    return ask(checked_url(arguments.source), path, authorization(arguments.api_key), _TIMEOUT)
