"""Starting, watching and ending real engine processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from genai_server.config.environment import export_settings
from genai_server.config.settings import Settings
from genai_server.messages.launch import EngineLaunch
from genai_server.messages.server_status import EngineCores, EngineStatus
from genai_server.supervisor import engine_process
from genai_server.supervisor.supervisor import Supervisor
from genai_server.system.resources import Core, Node
from tests.given_settings import given
from tests.running_server import DEMO, ROOT, clean_environment, has_ended, wait_until
from tests.server_here import starts_held


def settings(**values: str) -> Settings:
    return given(**{"device": "scripted", **values})


@contextmanager
def supervised(chosen: Settings | None = None, *, until: str = "ready") -> Iterator[Supervisor]:
    """A supervisor, by default of a scripted engine, whose first engine has come to a state."""
    supervisor = Supervisor(chosen or settings())
    supervisor.start()
    try:
        wait_until(lambda: first(supervisor).state == until)
        yield supervisor
    finally:
        supervisor.stop()


def first(supervisor: Supervisor) -> EngineStatus:
    """The first engine, as an API process sees it."""
    return supervisor.statuses()[0]


def pid_of_first(supervisor: Supervisor) -> int:
    pid = first(supervisor).pid
    assert pid is not None
    return pid


@pytest.mark.usefixtures("unforked")
def test_engine_becomes_ready_and_ends_with_its_supervisor() -> None:
    with supervised(until="starting") as supervisor:
        # Only the user has access.
        assert supervisor.folder.stat().st_mode & 0o077 == 0
        assert (supervisor.folder / "supervisor.json").stat().st_mode & 0o077 == 0
        wait_until(lambda: first(supervisor).state == "ready")
        status = first(supervisor)
        assert status.pid is not None
        assert (bool(status.address), status.restarts) == (True, 0)
    assert not psutil.pid_exists(status.pid)
    assert not supervisor.folder.exists()


def test_draft_model_without_effect_is_warned_of_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    models = {name: str(ROOT / "models" / name) for name in ("demo", "demo-embeddings", "demo-speech")}
    entries = ",".join(f"{name}={path}" for name, path in models.items())
    drafts = ",".join(f"{name}={DEMO}" for name in models)
    supervisor = Supervisor(settings(models=entries, draft_model=drafts))
    found = {about.name: about.draft_model for about in supervisor.model_statuses()}
    assert found == {"demo": str(DEMO), "demo-embeddings": "", "demo-speech": ""}
    assert [record.getMessage() for record in caplog.records] == [
        f"GENAI_DRAFT_MODEL={DEMO} has no effect on model {name}: the task of the model is {task}, and only completion "
        "has drafts"
        for name, task in (("demo-embeddings", "embedding"), ("demo-speech", "transcription"))
    ]


def test_each_engine_publishes_cache_events_at_its_own_port() -> None:
    several = {"models": "a=./models/demo,b=./models/demo", "device": "scripted:0,scripted:1"}
    events = {"kv_events": "tcp://*:5557", "kv_events_topic": "kv@host@{model}"}
    supervisor = Supervisor(settings(**several, **events))
    supervisor.folder.rmdir()
    targets = [each._launch.spec.kv_events for model in supervisor._models for each in supervisor._engines(model.about)]
    assert [(found.address, found.topic, found.rank) for found in targets if found is not None] == [
        ("tcp://*:5557", "kv@host@a", 0),
        ("tcp://*:5558", "kv@host@a", 1),
        ("tcp://*:5559", "kv@host@b", 2),
        ("tcp://*:5560", "kv@host@b", 3),
    ]


@pytest.mark.usefixtures("unforked")
def test_engines_never_receive_an_api_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, spy = tmp_path / "record", tmp_path / "spy"
    monkeypatch.setenv("SEEN_BY_THE_SPY", str(record))
    spy.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "what = repr((sys.argv, dict(os.environ), os.read(0, 1 << 16)))\n"
        "open(os.environ['SEEN_BY_THE_SPY'], 'w').write(what)\n",
        encoding="utf-8",
    )
    spy.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(spy))
    keys = settings(api_keys="ann:swordfish-0123456789", admin_api_key="swordfish-9876543210")
    exported: dict[str, str] = {}
    export_settings(keys, exported)  # as for several API processes, wherever the keys were set
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    with supervised(keys, until="failed"):
        pass
    assert "prefix_cache_dir" in record.read_text(encoding="utf-8")
    assert "swordfish" not in record.read_text(encoding="utf-8")


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="two CPUs of Linux stand for two nodes"
)
def test_an_engine_of_a_node_has_its_cores_and_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    nodes = [Node(number, (Core((cpu,)),)) for number, cpu in enumerate(cpus)]
    monkeypatch.setattr("genai_server.supervisor.supervisor.numa_nodes", lambda: nodes)
    with supervised(settings(device="cpu:0,cpu:1", model_dir=str(DEMO), cache_dir=str(tmp_path))) as found:
        wait_until(lambda: all(status.state == "ready" for status in found.statuses()))
        expected = [EngineCores(str(cpu), 1, number) for number, cpu in enumerate(cpus)]
        assert [status.cores for status in found.statuses()] == expected
        for status, cpu in zip(found.statuses(), cpus, strict=True):
            # ONNX Runtime's threads among them.
            assert {tuple(os.sched_getaffinity(thread.id)) for thread in psutil.Process(status.pid).threads()} == {
                (cpu,)
            }
            mapped = {file.path for file in psutil.Process(status.pid).memory_maps()}
            assert any(path.startswith(str(tmp_path / f"node-{status.device[-1]}")) for path in mapped)


def test_killed_engine_is_restarted() -> None:
    with supervised() as supervisor:
        with starts_held():
            os.kill(pid := pid_of_first(supervisor), signal.SIGKILL)
            wait_until(lambda: first(supervisor).state == "restarting")
            assert first(supervisor).error == (
                "the engine process died, exit status -9: killed, by the kernel if memory ran out, or by a user"
            )
        wait_until(lambda: first(supervisor).state == "ready")
        assert first(supervisor).pid != pid
        assert (first(supervisor).restarts, first(supervisor).error) == (1, None)


def test_engine_ignores_signals_meant_for_the_server() -> None:
    with supervised() as supervisor:
        process = psutil.Process(first(supervisor).pid)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            process.send_signal(number)
        with pytest.raises(psutil.TimeoutExpired):
            process.wait(0.5)


@pytest.mark.slow
def test_hung_engine_is_restarted_and_an_idle_one_is_not() -> None:
    devices = "scripted:0,scripted:1"
    with supervised(settings(device=devices, step_timeout="3")) as supervisor:
        wait_until(lambda: all(status.state == "ready" for status in supervisor.statuses()))
        pid, idle = (status.pid for status in supervisor.statuses())
        assert pid is not None
        with starts_held():
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: first(supervisor).state == "restarting")
            error = first(supervisor).error or ""
            assert first(supervisor).hung
            assert error.startswith("the engine process hung and was killed: the engine's loop has not ended for 3 s")
        wait_until(lambda: first(supervisor).state == "ready")
        assert not first(supervisor).hung
        assert not psutil.pid_exists(pid)
        # The other one was idle for as long.
        assert (supervisor.statuses()[1].state, supervisor.statuses()[1].pid) == ("ready", idle)


def test_a_crash_loop_is_given_up_with_the_last_reason() -> None:
    with supervised(settings(max_restarts="2")) as supervisor:
        for restarts in range(3):
            wait_until(lambda: first(supervisor).state == "ready" and first(supervisor).restarts == restarts)  # noqa: B023
            os.kill(pid_of_first(supervisor), signal.SIGKILL)
        wait_until(lambda: first(supervisor).state == "failed")
        status = first(supervisor)
        assert str(status.error).startswith(
            "given up after 2 restarts in a row (GENAI_MAX_RESTARTS): the engine process died, exit status -9"
        )
        assert (status.pid, status.address) == (None, "")


def test_a_load_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "genai_config.json")  # reading it blocks
    chosen = settings(device="cpu", model_dir=str(tmp_path), cache_dir="none", load_timeout="1")
    pids: list[int] = []

    start = engine_process.EngineProcess

    def noted(launch: EngineLaunch) -> engine_process.EngineProcess:
        process = start(launch)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(engine_process, "EngineProcess", noted)
    with supervised(chosen, until="failed") as supervisor:
        assert first(supervisor).error == (
            "the engine process was killed: it did not load its model within 1 s (GENAI_LOAD_TIMEOUT)"
        )
        (pid,) = pids
        assert not psutil.pid_exists(pid)


def test_device_that_cannot_load_fails_and_the_others_serve() -> None:
    with supervised(settings(device="cpu,cuda", model_dir=str(DEMO))) as supervisor:
        wait_until(lambda: [status.state for status in supervisor.statuses()] == ["ready", "failed"])
        _, cuda = supervisor.statuses()
        assert ("uda" in str(cuda.error), cuda.pid) == (True, None)
        assert not supervisor.status().no_model_loaded


def test_an_engine_ends_when_its_supervisor_is_killed(short_folder: Path) -> None:
    script = (
        "import sys, time\n"
        "from genai_server.config.sources import load_settings\n"
        "from genai_server.supervisor.supervisor import Supervisor\n"
        "supervisor = Supervisor(load_settings({'device': 'scripted'}, environ={}, dotenv=None))\n"
        "supervisor.start()\n"
        "while supervisor.statuses()[0].state != 'ready': time.sleep(0.01)\n"
        "print(supervisor.statuses()[0].pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = clean_environment(TMPDIR=str(short_folder))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        try:
            engine = psutil.Process(int(process.stdout.readline()))
        finally:
            process.kill()
    wait_until(lambda: has_ended(engine))


@pytest.mark.parametrize("error", [ValueError("embedded null byte"), StopIteration(), SystemExit(2), GeneratorExit()])
def test_exception_of_an_engines_start_becomes_its_state(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(launch: EngineLaunch) -> None:
        raise error

    monkeypatch.setattr("genai_server.supervisor.engine_process.EngineProcess", refuse)
    with supervised(until="failed") as supervisor:
        assert type(error).__name__ in str(first(supervisor).error)


def test_a_spec_that_cannot_be_sent_fails_the_engine() -> None:
    with supervised(settings(profile_dir="/\udc80"), until="failed") as supervisor:
        assert "surrogates not allowed" in str(first(supervisor).error)


@pytest.mark.parametrize("error", ["SystemExit(3)", "StopIteration()", "BaseException('two\\nlines \\udc80')"])
def test_an_exception_of_the_library_is_reported(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import genai_server.engine.runners.load_model as choose\n"
        "def load_model(spec):\n"
        f"    raise {error}\n"
        "choose.load_model = load_model\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src")]))
    with supervised(until="failed") as supervisor:
        name, _, text = error.partition("(")
        assert str(first(supervisor).error).startswith(name)
        assert ("two lines" in str(first(supervisor).error)) == ("two" in text)
