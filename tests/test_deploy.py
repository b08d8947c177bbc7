"""What lies in deploy/ fits the server."""

import json
import re
from itertools import combinations
from typing import Any

import pytest

from tests.running_server import ROOT, RunningServer, wait_until
from tests.scraped import Scraped, scrape

_DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
_LABEL = re.compile(r'(\w+)=~?"|by \(([\w, ]+)\)|\{\{(\w+)\}\}')


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in _DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.fixture
def scraped(scripted: RunningServer) -> Scraped:
    """The metrics of a server that has answered and refused."""
    assert scripted.chat("say hello").status_code == 200
    assert scripted.chat("say hello", strem=True).status_code == 400
    wait_until(lambda: "genai:prompt_tokens_total" in scrape(scripted).names())
    return scrape(scripted)


def test_the_dashboard_asks_for_metrics_that_there_are_by_labels_that_they_have(scraped: Scraped) -> None:
    labels = {name: {label for label, _ in found} for name, found in scraped.samples}
    for panel in _panels():
        for target in panel["targets"]:
            asked = set(re.findall(r"genai:\w+", target["expr"]))
            assert asked
            assert asked <= labels.keys(), panel["title"]
            used = {
                label.strip()
                for groups in _LABEL.findall(target["expr"] + target["legendFormat"])
                for label in "".join(groups).split(",")
            }
            for name in asked:
                assert used <= labels[name], panel["title"]


def test_the_dashboard_leaves_no_metric_out(scraped: Scraped) -> None:
    shown = set(re.findall(r"genai:\w+", json.dumps(_DASHBOARD)))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    there = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in scraped.names()}
    counters = {name.removesuffix("_total") for name in stems}
    # What two others that are shown add up to.
    assert {name.removesuffix("_total") for name in there} - counters == {"genai:request_inference_time_seconds"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = _DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@pytest.mark.parametrize("variable", _DASHBOARD["templating"]["list"], ids=lambda variable: str(variable["name"]))
def test_every_variable_is_used(variable: dict[str, Any]) -> None:
    name = variable["name"]
    assert f"${name}" in json.dumps(_DASHBOARD["panels"]) or f"${{{name}}}" in json.dumps(_DASHBOARD["panels"])
