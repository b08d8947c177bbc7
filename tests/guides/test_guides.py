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

from tests.guides.guide import FOLDER, Guide
from tests.guides.proxies import run_proxy
from tests.guides.reader import reader
from tests.local_hub import HubRepository, LocalHub, run_hub
from tests.running_server import DEMO, ROOT, RunningServer, clean_environment, run_server

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the guides are for a POSIX shell"),
    pytest.mark.timeout(300),
]


def publish(hub: LocalHub, *names: str) -> None:
    """Put the demo model into repositories with the layout of Microsoft's, with variants for CPUs and GPUs."""
    files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    folders = ("cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4", "gpu/gpu-int4-rtn-block-32")
    for name in names:
        hub.repositories[name] = HubRepository(
            {f"{folder}/{file}": content for folder in folders for file, content in files.items()}
        )


def test_readme(tmp_path: Path) -> None:
    with run_hub() as hub, reader(tmp_path, HF_ENDPOINT=hub.url) as here:
        publish(hub, "microsoft/Phi-4-mini-instruct-onnx")
        # The script installs, which tests/system/test_installation.py is about, and then starts this.
        here.replaced["./scripts/serve"] = "genai-server serve"
        here.replaced["--host 0.0.0.0"] = "--host 127.0.0.1"
        here.follow(Guide("README"))


@pytest.mark.parametrize("has_hub", [True, False], ids=["hub", "without a hub"])
def test_two_commands_on_the_first_screen_of_readme_give_an_answer(tmp_path: Path, has_hub: bool) -> None:
    """A real model from a hub with the layout of Microsoft's repositories; without one, the demo model."""
    start, question, *_ = Guide("README").blocks
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "serve", clone / "scripts")
    (clone / "scripts" / "install").write_text("#!/bin/sh\n", encoding="utf-8")
    (clone / "scripts" / "install").chmod(0o755)
    (clone / "models").symlink_to(ROOT / "models")
    (clone / ".venv").symlink_to(sys.prefix)
    program = start.code.split() if has_hub else start.code.split()[:1]
    with run_hub() as hub:
        publish(hub, "microsoft/Phi-4-mini-instruct-onnx")
        settings = {"HF_ENDPOINT": hub.url, "HOME": str(tmp_path / "home")}
        with run_server(tmp_path, settings=settings, program=program, cwd=clone) as server:
            assert server.client.get("/v1/models").json()["data"][0]["id"] == ("phi4-mini" if has_hub else "demo")
            asked = question.code.replace("http://127.0.0.1:8002", server.url)
            done = subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=True)
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]
    assert {path.split("/")[0] for path, _ in hub.sent} == ({"cpu_and_mobile"} if has_hub else set())


@pytest.mark.parametrize(
    ("name", "repositories"),
    [
        ("first-model", ["microsoft/Phi-4-mini-instruct-onnx"]),
        ("qwen-llama-gemma", ["onnx-community/Qwen3-8B-ONNX", "onnx-community/Llama-3.2-3B-Instruct-ONNX"]),
        ("offline", ["microsoft/Phi-4-mini-instruct-onnx"]),
    ],
)
def test_guide_that_fetches_models(name: str, repositories: list[str], tmp_path: Path) -> None:
    with run_hub() as hub, reader(tmp_path, HF_ENDPOINT=hub.url) as here:
        publish(hub, *repositories)
        here.follow(Guide(name))


HAS_TIME = find_spec("mcp_server_time") is not None
NEEDS_TIME = pytest.mark.skipif(not HAS_TIME, reason="mcp-server-time is not installed (the extra dev)")


@pytest.mark.parametrize(
    "name",
    [
        *("open-webui", "coding-agents", "start-at-boot", "users-and-limits", "slow-model"),
        pytest.param("tools", marks=NEEDS_TIME),
    ],
)
def test_guide_on_a_machine_with_a_model(name: str, tmp_path: Path) -> None:
    with reader(tmp_path) as here:
        models = Path(here.environment["HOME"]) / ".local/share/genai-server/models"
        shutil.copytree(DEMO, models / "phi4-mini")
        here.follow(Guide(name))


def test_reverse_proxy(tmp_path: Path) -> None:
    """With nginx; test_reverse_proxy.py is about the configurations."""
    with reader(tmp_path) as here:

        def start() -> None:
            proxy = here.stack.enter_context(run_proxy("nginx", here.replaced["127.0.0.1:8002"], tmp_path))
            here.replaced["llm.example.com:443"] = f"llm.example.com:{proxy.port}"
            here.replaced["https://llm.example.com/"] = f"https://llm.example.com:{proxy.port}/"

        (nginx,) = (each for each in Guide("reverse-proxy").left_out if "nginx" in each)
        here.instead[nginx] = start
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
    with reader(clone) as here:
        (clone / "responses.db").touch()
        (clone / "files").mkdir()
        (clone / ".env.example").unlink()
        git("checkout", ".env.example", folder=clone)
        here.follow(Guide("upgrading"))


def test_llm_as_judge(demo: RunningServer) -> None:
    (code,) = Guide("llm-as-judge").code("python")
    command = [sys.executable, "-c", code.replace("http://127.0.0.1:8002", demo.url)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False)
    assert re.fullmatch(r"[012]\.\d+ 0\.\d+ (friendly|neutral|rude)\n", done.stdout), done.stderr


def test_each_guide_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    names = {path.stem for path in FOLDER.glob("*.md")}
    assert {name for name in names if f'"{name}"' not in text} == set()


def test_each_row_of_what_no_test_runs_is_a_guides() -> None:
    text = (ROOT / "docs" / "evidence" / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Commands that no test runs")[2]
    rows = re.findall(r"^\| ([\w-]+) \| `", table, re.MULTILINE)
    assert len(rows) > 5
    assert all(Guide(name).left_out for name in rows)
