"""The install command in a message works for this copy of the server."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from genai_server.system.installation import Installation, installation
from tests.running_server import ROOT


def noted(source: Path, **more: object) -> str:
    """pip's record of an installation from a file or folder."""
    return json.dumps({"url": source.as_uri(), **more})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clone with its script, in a folder whose name has spaces."""
    found = tmp_path / "with a space"
    (found / "scripts").mkdir(parents=True)
    (found / "scripts" / "install").touch()
    return found


def editable(folder: Path, environment: str = ".venv") -> Installation:
    return installation(noted(folder, dir_info={"editable": True}), folder / environment)


def test_a_clones_own_environment_is_added_to_by_its_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = editable(folder)
    script = str(folder / "scripts" / "install")
    assert shlex.split(own.extra_command("bench")) == [script, "bench"]
    assert own.install_command("cpu", "export", python=sys.executable) == [script, "export"]
    pip = ["/other/python", "-m", "pip", "install", "-e", f"{folder}[cpu,export]"]
    assert own.install_command("cpu", "export", python="/other/python") == pip
    monkeypatch.chdir(folder)
    assert own.extra_command("bench") == "./scripts/install bench"
    assert own.device_command("cuda") == "GENAI_EXTRA=cuda ./scripts/install"


def test_clone_in_another_environment_is_installed_by_pip(folder: Path) -> None:
    other = editable(folder, "elsewhere")
    install = ["-m", "pip", "install"]
    assert shlex.split(other.extra_command("bench")) == [sys.executable, *install, "-e", f"{folder}[bench]"]
    assert other.device_command("cuda").endswith(f"pip install -e '{folder}[cuda]' (in a new environment)")
    copied = installation(noted(folder, dir_info={}), folder / "elsewhere")
    command = copied.command("cpu", "export", python="/other/python")
    assert shlex.split(command) == ["/other/python", *install, f"{folder}[cpu,export]"]


def test_a_wheel_is_named_by_its_path(tmp_path: Path) -> None:
    wheel = tmp_path / "with a space" / "genai_server-1-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    command = installation(noted(wheel, archive_info={}), tmp_path).extra_command("otel")
    assert shlex.split(command)[1:] == ["-m", "pip", "install", f"{wheel}[otel]"]


@pytest.mark.parametrize("direct_url", [None, noted(Path("/gone/x.whl")), '{"url": "https://example.org/x.whl"}'])
def test_command_without_the_original_files_asks_for_the_wheel(direct_url: str | None, tmp_path: Path) -> None:
    assert "'PATH_TO_WHEEL[hub]'" in installation(direct_url, tmp_path).extra_command("hub")


@pytest.mark.parametrize("path", ["README.md", "docs", "src", "CONTRIBUTING.md", "scripts", "Dockerfile"])
def test_nothing_tells_to_install_the_package_from_an_index(path: str) -> None:
    here = ROOT / path
    files = (
        [here] if here.is_file() else [each for each in here.rglob("*") if each.suffix in ("", ".py", ".md", ".cmd")]
    )
    texts = {each: each.read_text(encoding="utf-8", errors="replace") for each in files if each.is_file()}
    assert [each for each, text in texts.items() if "genai-server[" in text] == []
    assert texts


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with an environment whose Python and uv record what they are asked to install."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "native").mkdir()
    shutil.copy(ROOT / "scripts" / "install", tmp_path / "scripts")
    shutil.copytree(ROOT / "scripts" / "_install", tmp_path / "scripts" / "_install")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    pip_config = "global.index-url='https://example.org/simple'"
    # pip's options precede its command.
    listing = f'case "$*" in *"config list"*) echo "{pip_config}" ;; *--editable*) echo "pip downloads" ;; esac'
    for name, more in (("python", listing), ("uv", 'echo "uv downloads" >&2; exit ${UV_STATUS:-0}')):
        (commands / name).write_text(
            f'#!/bin/sh\necho "{name} $UV_DEFAULT_INDEX $@" | grep -e --editable >>{tmp_path}/asked\n{more}\n'
        )
        (commands / name).chmod(0o755)
    (tmp_path / ".venv" / "device").write_text("cpu\n")
    return tmp_path


def install(clone: Path, *extras: str, device: str = "", uv_status: int = 0) -> tuple[int, str]:
    """Exit status and output of the script."""
    environment = os.environ | {"PYTHON": sys.executable, "GENAI_EXTRA": device, "UV_STATUS": str(uv_status)}
    done = subprocess.run(
        [clone / "scripts" / "install", *extras], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def asked(clone: Path) -> list[tuple[str, str]]:
    """The programs that were asked to install, and what."""
    lines = (clone / "asked").read_text().splitlines()
    return [(line.partition(" pip install")[0], line.rpartition(" ")[2]) for line in lines]


UV = "uv https://example.org/simple"


@pytest.mark.parametrize(
    ("calls", "installed"),
    [
        (["", "bench otel", "otel", "", "bench hub"], [".[cpu]", ".[cpu,bench,otel]", ".[cpu,bench,hub]"]),
        (["dev", "audio"], [".[cpu,dev]"]),
    ],
    ids=["once", "the developers' extra has the others"],
)
def test_the_script_installs_each_extra_once(clone: Path, calls: list[str], installed: list[str]) -> None:
    assert [install(clone, *extras.split())[0] for extras in calls] == [0] * len(calls)
    assert asked(clone) == [(UV, each) for each in installed]


def test_pip_installs_where_uv_fails(clone: Path) -> None:
    status, said = install(clone, "otel", uv_status=2)
    assert status == 0
    assert said.splitlines()[1:4] == ["uv downloads", "uv cannot install it; pip does …", "pip downloads"]
    assert [(program.split()[0], extra) for program, extra in asked(clone)] == [
        ("uv", ".[cpu,otel]"),
        ("python", ".[cpu,otel]"),
    ]


@pytest.mark.parametrize(
    ("extras", "device", "reason"),
    [
        (["bench", "bnech"], "", "there is no extra bnech; known are audio, bench, chart, dev, docs, export, hub, "),
        (["cuda"], "", "cuda is for a device: GENAI_EXTRA=cuda ./scripts/install"),
        ([], "gpu", "GENAI_EXTRA=gpu: known are cpu, cuda, directml"),
    ],
)
def test_unknown_extra_leaves_the_environment_unchanged(
    extras: list[str], device: str, reason: str, clone: Path
) -> None:
    status, said = install(clone, *extras, device=device)
    assert status == 2
    assert said.startswith(reason)
    assert (clone / ".venv" / "device").exists()
    assert not (clone / "asked").exists()


def test_windows_has_a_script_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "scripts" / "install.cmd").touch()
    own = editable(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("genai_server.system.installation.os", SimpleNamespace(name="nt"))
    assert own.extra_command("bench").replace("\\", "/") == "scripts/install.cmd bench"
    assert own.device_command("winml").replace("\\", "/") == 'cmd /c "set GENAI_EXTRA=winml&& scripts/install.cmd"'


def test_what_is_older_than_the_project_is_installed_again(tmp_path: Path) -> None:
    """As scripts/install.cmd asks; scripts/install compares the times itself."""

    def is_missing(*extras: str) -> bool:
        command = [sys.executable, str(ROOT / "scripts" / "_install" / "extras.py"), "--missing", "cpu", *extras]
        return bool(subprocess.run(command, cwd=tmp_path, check=False).returncode)

    project, package = tmp_path / "pyproject.toml", tmp_path / ".venv" / "installed"
    otel = package.with_name("installed-otel")
    project.touch()
    assert is_missing()
    package.parent.mkdir()
    for path, time in ((project, 100), (package, 200), (otel, 200)):
        path.touch()
        os.utime(path, (time, time))
    assert not is_missing()
    assert not is_missing("otel")
    assert is_missing("otel", "bench")
    os.utime(otel, (50, 50))
    assert (is_missing(), is_missing("otel")) == (False, True)
    os.utime(project, (300, 300))
    assert is_missing()
