"""`genai-server usage`: shows the requests and tokens of each API key, day and model, and the total of each key.

They come from a running server, which keeps them for 400 days if it has GENAI_USAGE_FILE. Days are those of UTC.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from genai_server.cli.parser import positive
from genai_server.cli.screen import print_report, screen
from genai_server.errors import ServerUnusable
from genai_server.tools.server_answers import ask, authorization, checked_url

_TIMEOUT = 20.0
# Fields of an entry and their columns.
_COUNTS = {
    "requests": "requests",
    "refused": "refused",
    "prompt_tokens": "prompt tokens",
    "cached_tokens": "of them cached",
    "output_tokens": "output tokens",
}
_NO_KEY = "(no key)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server usage` to `parser`, and set `run` as the function that executes
    the command.
    """
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8002", metavar="URL", help="(default: %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's GENAI_ADMIN_API_KEY")
    parser.add_argument("--days", type=positive, default=7, metavar="N", help="the last N days (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the server's entries as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server usage`: print the numbers of requests and tokens that a server has counted, as tables or
    JSON. `arguments` are the parsed command line. Returns the exit status.

    Raises ServerUnusable if the server does not answer or is no genai-server.
    """
    url = checked_url(arguments.url)
    first = datetime.now(UTC).date() - timedelta(days=min(arguments.days, 366_000) - 1)
    answer = ask(url, f"/v1/admin/usage?since={first.isoformat()}", authorization(arguments.api_key), _TIMEOUT)
    try:
        entries = json.loads(answer)["data"]
    except (ValueError, LookupError, TypeError):
        raise ServerUnusable(f"{url} is not a genai-server") from None
    if arguments.json:
        print(json.dumps(entries, indent=2))
    elif not entries:
        print(f"no requests since {first.isoformat()}")
    else:
        print_report(screen(), [_rows(entries, ("day", "key_name", "model")), _rows(entries, ("key_name",))])
    return 0


def _rows(entries: Iterable[Mapping[str, Any]], fields: tuple[str, ...]) -> list[list[str]]:
    """Return a table of usage, with titles in the first row: one row for each combination of values that `entries` have
    in `fields` (such as day and model), with the sums of the counts of these entries.
    """
    sums: dict[tuple[str, ...], list[int]] = {}
    for entry in entries:
        labels = tuple(str(entry[field] or _NO_KEY) for field in fields)
        before = sums.get(labels, [0] * len(_COUNTS))
        sums[labels] = [total + entry[field] for total, field in zip(before, _COUNTS, strict=True)]
    titles = [field.removesuffix("_name") for field in fields]
    return [[*titles, *_COUNTS.values()], *([*labels, *map(str, sums[labels])] for labels in sorted(sums))]
