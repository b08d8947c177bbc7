"""The files in deploy/ fit the server."""

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.health_check import url_of
from genai_server.config.sources import load_settings
from tests.running_server import ROOT, RunningServer, clean_environment, wait_until
from tests.scraped import Scraped, scrape

_DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
_PINS = dict(
    line.split("==") for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines() if line[0] != "#"
)
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Settings of the image.
_EXTRAS = ("cpu", "cuda", "hub", "otel", "kv-events", "mcp", "bench")
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


def test_dashboard_uses_existing_metrics_and_labels(scraped: Scraped) -> None:
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


def test_dashboard_shows_every_metric(scraped: Scraped) -> None:
    shown = set(re.findall(r"genai:\w+", json.dumps(_DASHBOARD)))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    there = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in scraped.names()}
    counters = {name.removesuffix("_total") for name in stems}
    # Metrics that are parts of shown ones, and metrics for routers.
    assert {name.removesuffix("_total") for name in there} - counters == {
        "genai:request_inference_time_seconds",
        "genai:server_num_requests_running",
        "genai:server_num_requests_waiting",
        "genai:server_kv_cache_usage_perc",
        "genai:cache_config_info",
        "genai:lora_requests_info",
    }


def _stages() -> list[list[tuple[str, str]]]:
    """The instructions of the Dockerfile by stage; each stage starts with its FROM."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    stages: list[list[tuple[str, str]]] = []
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, " ".join(rest.split())))
    return stages


def _all(name: str, stage: list[tuple[str, str]]) -> list[str]:
    return [rest for instruction, rest in stage if instruction == name]


def _variables() -> dict[str, str]:
    (line,) = _all("ENV", _stages()[-1])
    return dict(word.split("=", 1) for word in shlex.split(line))


def test_base_image_is_pinned_and_the_same_for_all_stages() -> None:
    bases = [_all("FROM", stage)[0].partition(" AS ") for stage in _stages()]
    names = {name for _, _, name in bases}
    (image,) = {image for image, _, _ in bases if image not in names}
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", image)


def test_files_written_in_the_image_are_in_volumes() -> None:
    final = _stages()[-1]
    (volumes,) = map(json.loads, _all("VOLUME", final))
    assert volumes == [_variables()["GENAI_PROFILE_DIR"], _variables()["GENAI_CACHE_DIR"]]
    assert "-o server profiles /var/cache/genai-server" in _all("RUN", final)[0]
    settings = load_settings(environ=_variables(), dotenv=None)
    assert [str(settings.profile_dir), str(settings.cache_path)] == volumes


def test_all_that_the_image_copies_is_there_and_sent_to_docker() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    kept = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    for stage in _stages():
        for copied in (rest for rest in _all("COPY", stage) if not rest.startswith("--from")):
            for name in copied.split()[:-1]:
                assert (ROOT / name).exists(), name
                assert name in kept, name
                parent = Path(name).parent.as_posix()
                assert parent == "." or {parent, name} <= kept, name


@pytest.mark.parametrize("extra", ["", *_EXTRAS])
def test_each_requirement_fits_its_version_in_the_image(extra: str) -> None:
    for text in _PROJECT["optional-dependencies"][extra] if extra else _PROJECT["dependencies"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(_PINS[canonicalize_name(wanted.name)]), text


def test_indirect_requirements_have_versions_in_the_image() -> None:
    pins = {canonicalize_name(name) for name in _PINS}
    todo = [("genai-server", frozenset(set(_EXTRAS) - {"cuda"}))]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        for text in importlib.metadata.requires(name) or []:
            needed = Requirement(text)
            marker = needed.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
                continue
            assert canonicalize_name(needed.name) in pins, f"{needed.name}, which {name} needs"
            entry = (needed.name, frozenset(needed.extras))
            if entry not in seen:
                seen.add(entry)
                todo.append(entry)
    assert len(seen) > 40


def _check(process: int, **variables: str) -> tuple[int, str]:
    """Exit status and output of the image's health check for the server of a process."""
    command = [sys.executable, "deploy/health_check.py", str(process)]
    environment = clean_environment(**variables)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_health_check_uses_the_port_of_the_servers_arguments(scripted: RunningServer) -> None:
    # Servers of tests are forked, so the system does not show their arguments.
    port = scripted.url.rpartition(":")[2]
    command = [sys.executable, "-c", "input()", "serve", "--port", port]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        assert _check(other.pid) == (0, "")
        # It ignores proxies.
        assert _check(other.pid, http_proxy="http://127.0.0.1:9") == (0, "")
        other.kill()


def test_the_health_check_follows_the_port_and_says_why_no_work_is_taken(own_scripted: RunningServer) -> None:
    port = own_scripted.url.rpartition(":")[2]
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert _check(other.pid, PORT=port) == (0, "")
            status, reason = _check(other.pid, PORT="9")
            assert (status, reason.startswith("http://127.0.0.1:9/readyz: "), reason.count("\n")) == (1, True, 1)
            assert own_scripted.options(terminate_session="1").status_code == 200
            status, reason = _check(other.pid, PORT=port)
        finally:
            own_scripted.recover()
            other.kill()
    assert (status, f"http://127.0.0.1:{port}/readyz: 503 " in reason) == (1, True)
    assert "device scripted:0 is terminated" in reason


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://127.0.0.1:8002/readyz"),
        ({"HOST": "0.0.0.0", "PORT": "9000"}, "http://127.0.0.1:9000/readyz"),
        ({"HOST": "::"}, "http://[::1]:8002/readyz"),
        ({"HOST": "10.0.0.3", "GENAI_TLS_CERT": "/c.pem"}, "https://10.0.0.3:8002/readyz"),
    ],
)
def test_the_health_check_asks_where_the_server_listens(variables: dict[str, str], url: str) -> None:
    assert url_of(load_settings(environ=variables, dotenv=None)) == url
