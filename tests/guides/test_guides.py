"""Each guide in docs/guides does what it says: its commands are run as a reader types them."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from scripts._clients.recipe import PROMPT, recipe
from tests.guides.guide import Guide
from tests.guides.proxies import run_proxy
from tests.guides.reader import reader
from tests.local_hub import HubRepository, run_hub
from tests.running_server import DEMO, ROOT

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the guides are for a POSIX shell"),
    pytest.mark.timeout(300),
]
# Installs programs for minutes; tests/test_installation.py is about the script.
INSTALLS = r"\./scripts/install"
ACTIVATION = r"\. \.venv/bin/activate"


def test_first_model(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    folders = ("cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4", "gpu/gpu-int4-rtn-block-32")
    with run_hub() as hub, reader(tmp_path, INSTALLS, HF_ENDPOINT=hub.url) as here:
        hub.repositories["microsoft/Phi-4-mini-instruct-onnx"] = HubRepository(
            {f"{folder}/{name}": content for folder in folders for name, content in files.items()}
        )
        here.follow(Guide("first-model"))


def test_open_webui(tmp_path: Path) -> None:
    """scripts/check_clients.py runs Open WebUI itself with these lines."""
    with reader(tmp_path, "python3 -m venv", ".*pip install", ".*/open-webui serve") as here:
        here.follow(Guide("open-webui"))


def test_coding_agents(tmp_path: Path) -> None:
    """scripts/check_clients.py launches the agents themselves."""
    with reader(tmp_path, r"genai-server launch \w") as here:
        models = Path(here.environment["HOME"]) / ".local/share/genai-server/models"
        shutil.copytree(DEMO, models / "Phi-4-mini-instruct-onnx")
        here.follow(Guide("coding-agents"))


def test_users_and_limits(tmp_path: Path) -> None:
    with reader(tmp_path, "export SERVER") as here:
        here.follow(Guide("users-and-limits"))


def test_reverse_proxy(tmp_path: Path) -> None:
    """With nginx; test_reverse_proxy.py is about the configurations."""
    with reader(tmp_path, "sudo nginx", "sudo caddy", "sudo install") as here:

        def start() -> None:
            proxy = here.stack.enter_context(run_proxy("nginx", here.replaced["127.0.0.1:8002"], tmp_path))
            here.replaced["llm.example.com:443"] = f"llm.example.com:{proxy.port}"
            here.replaced["https://llm.example.com/"] = f"https://llm.example.com:{proxy.port}/"

        here.instead["sudo nginx"] = start
        here.follow(Guide("reverse-proxy"))


def test_prometheus_and_grafana(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (scripts/install dev installs it in containers)")
    guide = Guide("prometheus-and-grafana")
    panels = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    queries += guide.code("promql")[0].splitlines()
    with reader(tmp_path) as here:
        here.follow(guide)
        url = f"http://{here.replaced['127.0.0.1:9090']}/api/v1/query"
        for query in queries:
            query = re.sub(r"\$(__rate_interval|__interval)", "1m", query)
            answer = httpx.get(url, params={"query": re.sub(r"\$\{?\w+\}?", ".*", query)}, timeout=90).json()
            assert answer["status"] == "success", answer
        names = httpx.get(url.replace("query", "label/__name__/values"), timeout=90).json()["data"]
        assert {name for query in queries for name in re.findall(r"genai:num_\w+|genai:engine_\w+", query)} <= {*names}


def test_slow_model(tmp_path: Path) -> None:
    with reader(tmp_path, INSTALLS) as here:
        here.follow(Guide("slow-model"))


@pytest.mark.skipif(find_spec("mcp_server_time") is None, reason="mcp-server-time is not installed (the extra dev)")
def test_tools(tmp_path: Path) -> None:
    with reader(tmp_path, INSTALLS, "pip install") as here:
        here.follow(Guide("tools"))


def test_upgrading(tmp_path: Path) -> None:
    def git(*words: str, folder: Path) -> None:
        name = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)

    upstream, clone = tmp_path / "upstream", tmp_path / "clone"
    upstream.mkdir()
    git("init", folder=upstream)
    shutil.copy(ROOT / ".env.example", upstream)
    git("add", ".", folder=upstream)
    git("commit", "-m", "before", folder=upstream)
    git("clone", str(upstream), str(clone), folder=tmp_path)
    git("commit", "--allow-empty", "-m", "newer", folder=upstream)
    (clone / ".env.example").unlink()
    with reader(clone, INSTALLS) as here:
        (clone / "responses.db").touch()
        (clone / "files").mkdir()
        (clone / ".env.example").unlink()
        git("checkout", ".env.example", folder=clone)
        here.follow(Guide("upgrading"))


def test_lines_for_open_webui_are_those_that_the_script_runs() -> None:
    """scripts/check_clients.py runs them with the client itself. Models and numbers are the guide's own."""
    lines = re.findall(r"```(?:sh|bash)\n((?:export|cat).*?)```", Guide("open-webui").text, re.DOTALL)[0]
    names = r"\bdemo\b|\b\d{4,}\b"
    ours = re.sub(r"open-webui-environment/bin/| --port 8080", "", lines)
    for line in re.sub(names, "…", recipe("Open WebUI").replace('"$PROMPT"', PROMPT)).splitlines():
        assert line in re.sub(names, "…", ours).splitlines()
