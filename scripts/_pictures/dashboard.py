"""A Prometheus that scrapes a server, and the first panels of deploy/grafana-dashboard.json drawn from its answers."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import matplotlib.pyplot as plt
from _load.server import HOST, REPOSITORY, free_port, is_answered, running
from matplotlib.ticker import MaxNLocator

_DASHBOARD = REPOSITORY / "deploy" / "grafana-dashboard.json"
# By Grafana's unit: the factor, and what stands at the axis.
_UNITS = {"s": (1000.0, "ms"), "short": (1.0, ""), "reqps": (1.0, "a second"), "percentunit": (100.0, "%")}
_PANELS = ("Time to first token", "Tokens", "Parts of an answer's time, mean", "Running and waiting")
_STEP = 5
_SECONDS = 60.0


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the server at an address every two seconds until the block ends."""
    address = f"{HOST}:{free_port()}"
    job = {"job_name": "genai-server", "static_configs": [{"targets": [target]}]}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "2s"}, "scrape_configs": [job]}), encoding="utf-8")
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'prometheus'}"]
    command += [f"--web.listen-address={address}", "--log.level=error"]
    url = f"http://{address}"
    with running(command, os.environ, folder / "prometheus.log", lambda: is_answered(f"{url}/-/ready"), _SECONDS):
        yield url


def _series(url: str, query: str, seconds: float) -> list[dict[str, Any]]:
    """The values of a query in the last `seconds`."""
    now = time.time()
    params: dict[str, Any] = {"query": query, "start": now - seconds, "end": now, "step": _STEP}
    answer = httpx.get(f"{url}/api/v1/query_range", params=params).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def draw(url: str, file: Path, seconds: float = 280) -> None:
    """Write a picture of some panels with their titles, units and legends, from the Prometheus at this URL."""
    panels = {panel["title"]: panel for panel in json.loads(_DASHBOARD.read_text(encoding="utf-8"))["panels"]}
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 8, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e8eb"})
    figure, places = plt.subplots(2, 2, figsize=(10.6, 5.2), layout="constrained")
    for place, title in zip(places.flat, _PANELS, strict=True):
        panel = panels[title]
        factor, unit = _UNITS[panel["fieldConfig"]["defaults"]["unit"]]
        stacks = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
        lines = [line for target in panel["targets"] for line in _lines(url, target, factor, seconds)]
        if stacks:
            times = lines[0][1]
            place.stackplot(times, [values[: len(times)] for _, _, values in lines], labels=[each[0] for each in lines])
        else:
            for name, times, values in lines:
                place.plot(times, values, label=name, linewidth=1.3)
        place.set_title(f"{title}{f' ({unit})' if unit else ''}", loc="left", fontweight="bold", fontsize=9)
        place.set_ylim(bottom=0)
        place.xaxis.set_major_locator(MaxNLocator(5))
        place.xaxis.set_major_formatter(lambda at, _: datetime.fromtimestamp(at).strftime("%H:%M"))
        place.set_axisbelow(True)
        place.legend(fontsize=7, frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(-0.02, -0.08))
        place.margins(x=0)
    figure.savefig(file, dpi=110)


def _lines(
    url: str, target: dict[str, Any], factor: float, seconds: float
) -> list[tuple[str, list[float], list[float]]]:
    """The name, times and values of each line of a target."""
    query = re.sub(r"\$__rate_interval", "30s", target["expr"])
    query = re.sub(r"\$\w+", ".*", query)
    lines = []
    for series in _series(url, query, seconds):
        labels = series["metric"]
        name = target["legendFormat"]
        for label, value in labels.items():
            name = name.replace(f"{{{{{label}}}}}", value)
        points = [(float(at), float(value) * factor) for at, value in series["values"] if value != "NaN"]
        lines.append((name, [at for at, _ in points], [value for _, value in points]))
    return lines
