"""The state of a server at one moment, read from /healthz, /metrics and /v1/requests, and the tables of `top` that show
it: devices, and requests in the chosen order.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from genai_server.errors import ServerUnusable
from genai_server.tools.server_answers import ask, authorization, checked_url

_TIMEOUT = 5.0


class ModelDevice(NamedTuple):
    """The name of a model and of one of the devices on which it runs; a key for metrics and states."""

    model: str
    device: str


@dataclass(frozen=True)
class Snapshot:
    """The state of a server at one moment, as `Poller.poll` reads it: /healthz, the metrics, and the running and
    waiting requests, or the reason why the server does not list these.
    """

    # Seconds of `time.monotonic`.
    at: float
    health: Mapping[str, Any]
    # Values by metric, without the prefix of all names, and place; summed over all other labels.
    samples: Mapping[tuple[str, ModelDevice], float]
    requests: list[dict[str, Any]] = field(default_factory=list)
    # Why the server does not list its requests; None if it does.
    refused: str | None = None

    def value(self, name: str, model_device: ModelDevice) -> float | None:
        """Return the value of the metric `name` (without the common prefix) for a model on a device; None if the server
        does not report it.
        """
        return self.samples.get((name, model_device))

    def model_devices(self) -> dict[ModelDevice, Mapping[str, Any]]:
        """Return the status of each model on each of its devices, as /healthz reports it: a dictionary with, for
        example, `state`.
        """
        models = self.health.get("models")
        if models is None:
            return {
                ModelDevice(str(status.get("model", "")), name): status
                for name, status in self.health["devices"].items()
            }
        return {
            ModelDevice(name, device): status
            for name, model in models.items()
            for device, status in model["devices"].items()
        }


@dataclass(frozen=True)
class Interval:
    """The time between two snapshots of a server, from which increases and rates of metrics are computed. `before` is
    None if there is no earlier snapshot; the increases are then those since the server's start.
    """

    # None for the server's start.
    before: Snapshot | None
    now: Snapshot

    def more(self, name: str, model_device: ModelDevice) -> float:
        """Return by how much the counter `name` has grown in this interval, for a model on a device. For a counter that
        was reset meanwhile, for example by a restart, its whole value is returned.
        """
        last = self.now.value(name, model_device) or 0.0
        first = (self.before.value(name, model_device) if self.before else None) or 0.0
        return last - first if last >= first else last

    def rate(self, name: str, model_device: ModelDevice) -> float | None:
        """Return by how much the counter `name` has grown per second, for a model on a device; None without an earlier
        snapshot.
        """
        if self.before is None or self.now.at <= self.before.at:
            return None
        return self.more(name, model_device) / (self.now.at - self.before.at)

    def mean(self, name: str, model_device: ModelDevice, scale: float = 1) -> float | None:
        """Return the mean of the values that the histogram `name` has recorded in this interval, for a model on a
        device, times `scale`; None if it has recorded none.
        """
        count = self.more(f"{name}_count", model_device)
        return self.more(f"{name}_sum", model_device) * scale / count if count else None


class Poller:
    """Reads the state of one server over HTTP, and cancels requests, for `genai-server top` and `mcp`.

    `key` is an API key of the server or None. Any API key suffices, except for the list of requests, which needs the
    admin key.
    """

    def __init__(self, url: str, key: str | None) -> None:
        self._url = checked_url(url)
        self._headers = authorization(key)

    def poll(self) -> Snapshot:
        """Return the current state of the server. Raises ServerUnusable if the server does not answer; if only the list
        of requests is refused, the snapshot has the reason instead.
        """
        health = self._object("/healthz", "devices")
        try:
            samples = _samples(self._ask("/metrics").decode())
        except ValueError:
            raise ServerUnusable(f"{self._url}/metrics has no metrics") from None
        try:
            requests: list[dict[str, Any]] = self._object("/v1/requests", "data")["data"]
            refused = None
        except ServerUnusable as error:
            requests, refused = [], str(error)
        return Snapshot(time.monotonic(), health, samples, requests, refused)

    def cancel(self, unique_id: str) -> None:
        """Cancel the request with this `unique_id`. Its client receives the answer so far. Raises ServerUnusable if the
        server refuses or does not answer.
        """
        self._ask(f"/v1/requests/{quote(unique_id, safe='')}/cancel", "POST")

    def _ask(self, path: str, method: str = "GET") -> bytes:
        return ask(self._url, path, self._headers, _TIMEOUT, method)

    def _object(self, path: str, field: str) -> dict[str, Any]:
        """Return the JSON object with which the server responds to a GET request for `path`. Raises ServerUnusable if
        the server does not answer, or if the response is not an object with the field `field`.
        """
        try:
            value = json.loads(self._ask(path))
        except ValueError:
            value = None
        if not isinstance(value, dict) or field not in value:
            raise ServerUnusable(f"{self._url} is not a genai-server")
        return value


def _samples(text: str) -> dict[tuple[str, ModelDevice], float]:
    """Parse metrics in Prometheus' text format. Returns the values by metric name (without the common prefix) and by
    model and device.

    Values are summed over all other labels; a LoRA adapter's values count toward its model.
    """
    values: dict[tuple[str, ModelDevice], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                model = sample.labels.get("model_name", "").partition(":")[0]
                key = (sample.name.partition(":")[2], ModelDevice(model, sample.labels.get("device", "")))
                values[key] = values.get(key, 0.0) + sample.value
    return values


# Requests that are shown where the height of the terminal is unknown, and at least.
_MAX_REQUESTS, _MIN_REQUESTS = 20, 3
# The texts of a row by column.
Row = Mapping[str, str]
# Fields of requests by which they can be sorted, each with the column and whether the largest come first.
ORDERS = (
    ("age", "age s", True),
    ("output_tokens", "output", True),
    ("prompt_tokens", "prompt", True),
    ("phase", "phase", False),
    ("model", "model", False),
    ("key_name", "key", False),
)
_STATES = ("device", "model", "state", "run", "wait", "kv")
_COLUMNS = (*_STATES, "in/s", "out/s", "ans/s", "ttft", "itl", "rows", "hits", "died")
_REQUEST_COLUMNS = ("request", "key", "device", "model", "phase", "age s", "prompt", "cached", "output")
_TEXTS = {"device", "model", "state", "request", "key", "phase"}
# Titles that need no legend, where there is space.
_LONG_TITLES = {
    "run": "running",
    "wait": "waiting",
    "kv": "KV\nmemory",
    "in/s": "tokens\nin/s",
    "out/s": "tokens\nout/s",
    "ans/s": "answers\n/s",
    "ttft": "first\ntoken ms",
    "itl": "next\ntoken ms",
    "rows": "rows a\nstep",
    "hits": "prompt\ncached",
    "died": "re-\nstarts",
}
# Columns that a narrow terminal omits, in this order.
_LEFT_OUT = ("died", "rows", "ans/s", "hits", "kv", "cached", "in/s", "itl", "age s", "ttft")
# Cells between two columns.
_GAP = 2
# Maximum characters of a name, in a wide terminal first.
_NAME_LENGTHS = (128, 24, 16, 10)
_LEGEND = "a second: tokens in, out, answers; ms: to the first token, between tokens; hits: of prompts, cached"
_KEYS = "q quits   s sorts   ↑ ↓ choose a request   c cancels it"


@dataclass
class Choice:
    """What the user of `genai-server top` has chosen with keys: the column by which requests are sorted, the selected
    request, and a notice that is shown in place of the list of keys.
    """

    order: int = 0
    # The `unique_id` of the request.
    request: str | None = None
    # Replaces the line about keys.
    notice: str = ""

    def sorted(self, requests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the requests sorted by the chosen column, as a new list."""
        field, _, is_descending = ORDERS[self.order]

        def value(request: Mapping[str, Any]) -> Any:
            field_value = request.get(field)
            return "" if field_value is None else field_value

        return sorted(requests, key=value, reverse=is_descending)

    def next_order(self) -> None:
        """Choose the next column for sorting requests; after the last one comes the first."""
        self.order = (self.order + 1) % len(ORDERS)

    def move(self, requests: Sequence[Mapping[str, Any]], step: int) -> None:
        """Choose the request `step` rows below the chosen one (above it for a negative `step`), or the first request if
        none was chosen.
        """
        ids = [request["unique_id"] for request in self.sorted(requests)]
        index = ids.index(self.request) + step if self.request in ids else 0
        self.request = ids[max(0, min(index, len(ids) - 1))] if ids else None


def view(
    interval: Interval, width: int | None, height: int | None = None, choice: Choice | None = None
) -> RenderableType:
    """Return what `genai-server top` shows for an interval: a table of devices and a table of requests, to be printed
    by Rich.

    `width` and `height` are those of the terminal in characters, to which the tables are fitted; a `width` of None
    means that the output is no terminal. `choice` is what the user has chosen; by default nothing.
    """
    model_devices = interval.now.model_devices()
    with_model = width is not None or len({model_device.model for model_device in model_devices}) > 1
    rows = [_device(interval, model_device, status) for model_device, status in model_devices.items()]
    columns = [name for name in _COLUMNS if with_model or name != "model"]
    title = f"genai-server {interval.now.health.get('version', '')}"
    has_long_titles = width is not None and _width(columns, rows, _LONG_TITLES) <= width
    devices = _table(title, columns, rows, width, titles=_LONG_TITLES if has_long_titles else {})
    above: list[RenderableType] = [devices, ""] if has_long_titles else [devices, _LEGEND, ""]
    if interval.now.refused is not None:
        return Group(*above, f"requests are not shown: {interval.now.refused}")
    choice = choice or Choice()
    ordered = choice.sorted(interval.now.requests)
    max_rows = _MAX_REQUESTS if height is None else max(_MIN_REQUESTS, height - len(rows) - 9)
    first = next((index for index, request in enumerate(ordered) if request["unique_id"] == choice.request), 0)
    first = max(0, min(first - max_rows // 2, len(ordered) - max_rows))
    shown = ordered[first : first + max_rows]
    has_keys = any(request.get("key_name") for request in interval.now.requests)
    left_out = {*(() if with_model else ("model",)), *(() if has_keys else ("key",))}
    columns = [name for name in _REQUEST_COLUMNS if name not in left_out]
    _, sorted_by, _ = ORDERS[choice.order]
    title = f"{len(ordered)} request{'s' * (len(ordered) != 1)}{f', sorted by {sorted_by}' if width else ''}"
    marked = next((number for number, request in enumerate(shown) if request["unique_id"] == choice.request), None)
    requests = _table(title, columns, [_request(request) for request in shown], width, marked=marked)
    more = [f"and {len(ordered) - max_rows} more"] if len(ordered) > max_rows else [""]
    keys = [] if width is None else [choice.notice or _KEYS]
    return Group(*above, requests, *more, *keys)


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    width: int | None,
    *,
    titles: Mapping[str, str] = {},
    marked: int | None = None,
) -> Table:
    """Return a table with these columns and rows. If it would be wider than `width` characters, some columns are left
    out; with None the output is no terminal, and nothing is left out.

    `titles` has titles of columns that differ from the columns' names. The row with the index `marked` is inverted.
    """
    if width is None:
        table = Table(box=None, title=title, title_justify="left")
    else:
        table = Table(box=None, title=title, title_justify="left", padding=(0, _GAP, 0, 0), header_style="bold")
        columns, rows = (columns, rows) if titles else _fitting(columns, rows, width)
    for name in columns:
        table.add_column(
            titles.get(name, name),
            justify="left" if name in _TEXTS else "right",
            vertical="bottom",
            no_wrap=width is not None,
        )
    for number, row in enumerate(rows):
        cells = [_coloured(name, row[name], in_terminal=width is not None) for name in columns]
        table.add_row(*cells, style="reverse" if number == marked else None)
    return table


def _width(columns: Sequence[str], rows: Sequence[Row], titles: Mapping[str, str] = {}) -> int:
    return sum(
        max(cell_len(text) for text in (*titles.get(name, name).split("\n"), *(row[name] for row in rows))) + _GAP
        for name in columns
    )


def _fitting(columns: Sequence[str], rows: Sequence[Row], width: int) -> tuple[Sequence[str], Sequence[Row]]:
    """Return the columns and rows of a table, reduced so that they fit into `width` characters.

    Long names in the rows are shortened first; then columns are left out, and then names are shortened further.
    """
    length = _NAME_LENGTHS[0]
    for length in _NAME_LENGTHS:
        fitted = [_shortened(row, length) for row in rows]
        if _width(columns, fitted) <= width:
            return columns, fitted
        if length < _NAME_LENGTHS[1]:
            for name in _LEFT_OUT:
                columns = [column for column in columns if column != name]
                if _width(columns, fitted) <= width:
                    return columns, fitted
    return columns, [_shortened(row, length) for row in rows]


def _shortened(row: Row, width: int) -> Row:
    return {name: text if len(text) <= width else f"{text[: width - 1]}…" for name, text in row.items()}


def _coloured(column: str, text: str, *, in_terminal: bool) -> str | Text:
    if column != "state" or not in_terminal:
        return text
    return Text(text, "green" if text == "ready" else "red" if text in ("failed", "terminated") else "yellow")


def _request(entry: Mapping[str, Any]) -> dict[str, str]:
    tokens = {kind: str(entry[f"{kind}_tokens"]) for kind in ("prompt", "cached", "output")}
    names = {
        "request": entry["id"],
        "key": entry.get("key_name") or "–",
        **{name: str(entry[name]) for name in ("device", "model", "phase")},
    }
    return {**names, "age s": f"{entry['age']:.1f}", **tokens}


def _device(interval: Interval, model_device: ModelDevice, status: Mapping[str, Any]) -> dict[str, str]:
    now = interval.now
    queries = interval.more("prefix_cache_queries_total", model_device)
    running, slots = (now.value(name, model_device) for name in ("num_requests_running", "num_slots"))
    return {
        "device": model_device.device,
        "model": model_device.model,
        "state": "terminated" if status.get("terminated") else str(status["state"]),
        "run": f"{_cell(running, '.0f')}/{_cell(slots, '.0f')}",
        "wait": _cell(now.value("num_requests_waiting", model_device), ".0f"),
        "kv": _cell(now.value("kv_cache_usage_perc", model_device), ".0%"),
        "in/s": _cell(interval.rate("prompt_tokens_total", model_device)),
        "out/s": _cell(interval.rate("generation_tokens_total", model_device)),
        "ans/s": _cell(interval.rate("request_success_total", model_device)),
        "ttft": _cell(interval.mean("time_to_first_token_seconds", model_device, 1000)),
        "itl": _cell(interval.mean("inter_token_latency_seconds", model_device, 1000)),
        "rows": _cell(interval.mean("decode_batch_size", model_device)),
        "hits": _cell(interval.more("prefix_cache_hits_total", model_device) / queries if queries else None, ".0%"),
        "died": _cell(now.value("engine_restarts_total", model_device), ".0f"),
    }


def _cell(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else format(value, form)
