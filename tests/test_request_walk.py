"""docs/architecture.md lists the files that run code for a streamed chat completion, and this test runs one."""

import re
import time
from pathlib import Path

from tests.running_server import ROOT, run_server, wait_until

PACKAGE = ROOT / "src" / "genai_server"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
# For what a request leaves to do after its answer.
_SECONDS_TO_SETTLE = 0.5
MAX_FILES = 65
MAX_TO_KEEP_IN_MIND = 14
# Run when some time has passed, so that they may run during a request or not.
PERIODIC = {
    "apis/app.py",
    "apis/status/engine_metrics.py",
    "apis/status/load_history.py",
    "engine/runners/loaded_model.py",
    "process_memory.py",
}


def listed() -> tuple[list[str], list[str]]:
    """The files that the document lists, and those in bold."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    table = text.partition("## The files of a request")[2].partition("\n## ")[0].partition("| step |")[2]
    rows = table.partition("\n\n")[0]
    return re.findall(r"`([\w/]+\.py)`", rows), re.findall(r"\*\*`([\w/]+\.py)`\*\*", rows)


def walked(folder: Path) -> set[str]:
    """The files that run code for a streamed chat completion to a warm server."""
    settings = {"PYTHONPATH": str(Path(__file__).parent / "walk"), "WALK_FOLDER": str(folder)}
    question = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "stream": True,
    }
    with run_server(folder, settings=settings) as server:
        pids = [server.process.pid, server.device("cpu")["pid"]]
        for is_noted in (False, True):
            if is_noted:
                (folder / "on").touch()
                wait_until(lambda: all((folder / f"begun-{pid}").exists() for pid in pids))
            answer = server.client.post("/v1/chat/completions", json=question)
            assert answer.text.rstrip().endswith("data: [DONE]")
            time.sleep(_SECONDS_TO_SETTLE)
        (folder / "on").unlink()
        wait_until(lambda: all((folder / f"{pid}").exists() for pid in pids))
    files = {line for path in folder.glob("[0-9]*") for line in path.read_text(encoding="utf-8").split()}
    return {str(Path(name).relative_to(PACKAGE)) for name in files if Path(name).is_relative_to(PACKAGE)}


def test_architecture_lists_the_files_of_a_request(tmp_path: Path) -> None:
    files, important = listed()
    found = walked(tmp_path)
    assert set(files) - found <= PERIODIC
    assert found - set(files) <= PERIODIC
    assert len(set(files)) == len(files) <= MAX_FILES
    assert len(important) <= MAX_TO_KEEP_IN_MIND
    assert f"runs code in {len(files)} of about" in ARCHITECTURE.read_text(encoding="utf-8")
