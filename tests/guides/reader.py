"""A reader who types what a guide shows, from its top to its end, in a folder of their own.

A server that a guide starts runs until the guide starts the next one. What the guide asks to save is saved. Outputs
must have the lines that the guide shows; `…` there stands for anything.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.guides.guide import SHELLS, Block, Guide
from tests.running_server import ROOT, clean_environment, free_port, run_server, wait_until

# Options for commands that would run until a key is pressed, or for minutes.
_SHORTER = {"genai-server top": " --once --interval 0.1", "genai-server bench": " --requests 2 --output-tokens 8"}
# Programs of a guide that run until they are stopped are noted here, and started when the line has been read.
_PRELUDE = """
note() { printf '%s\\0' "$@" > "$NOTED/words"; env -0 > "$NOTED/environment"; }
genai-server() { if [ "$1" = serve ]; then note genai-server "$@"; else command genai-server "$@"; fi; }
prometheus() { note prometheus "$@"; }
"""
_LONG = re.compile(r"^(?:\w+=(?:\"[^\"]*\"|\S+) )*(?:genai-server serve|prometheus )")
_SAVED = re.compile(r"[Ss]ave this as `([\w.-]+)`[^\n]*\n(?:[^\n]+\n)*\n\Z")


@dataclass
class Reader:
    """Follows one guide. `replaced` has addresses of the guide, and those in use here."""

    folder: Path
    stack: ExitStack
    environment: dict[str, str]
    replaced: dict[str, str]
    # What is done in place of lines that are not run, by their regular expression in the guide's list.
    instead: dict[str, Callable[[], object]] = field(default_factory=dict)
    _left_out: list[str] = field(default_factory=list)
    _skipped: set[str] = field(default_factory=set)
    _server: ExitStack = field(default_factory=ExitStack)

    def follow(self, guide: Guide) -> None:
        """Run all of its blocks. Fails at a command that fails, at an output that lacks a line, and if a line that the
        guide's list leaves out does not occur.
        """
        self.stack.push(self._server)
        self._left_out = guide.left_out
        at = 0
        for block in guide.blocks:
            at = guide.text.index(block.code, at)
            before = guide.text[:at].rpartition("```")[0]
            if block.language in SHELLS:
                self._run(block)
            elif saved := _SAVED.search(before):
                (self.folder / saved[1]).write_text(self._here(block.code), encoding="utf-8")
        unused = set(self._left_out) - self._skipped
        assert not unused, f"nothing to leave out: {unused}"

    def _run(self, block: Block) -> None:
        output = ""
        for part in self._parts(self._here(block.code)):
            output += self._shell(part)
            if (words := self.folder / "noted" / "words").exists():
                self._start(words.read_text().split("\0")[:-1])
                words.unlink()
        missing = missing_lines(self._here(block.output), output)
        assert not missing, f"not in the output: {missing}\n{output}"

    def _here(self, code: str) -> str:
        for written, used in self.replaced.items():
            code = code.replace(written, used)
        return code

    def _parts(self, code: str) -> Iterator[str]:
        """The code in parts, each ending with a program that is to run in the background."""
        part = ""
        for line in _joined(code).splitlines(keepends=True):
            left_out = [pattern for pattern in self._left_out if re.match(pattern, line)]
            self._skipped.update(left_out)
            if left_out:
                if left_out[0] in self.instead:
                    yield part
                    part = ""
                    self.instead[left_out[0]]()
                continue
            for command, options in _SHORTER.items():
                line = re.sub(rf"^{command}(?=\s)", command + options, line)
            part += line
            if _LONG.match(line):
                yield part
                part = ""
        if part:
            yield part

    def _shell(self, code: str) -> str:
        state = self.folder / "noted" / "state"
        question = "What is the capital of France?\n" if "genai-server chat" in code else ""
        done = subprocess.run(
            ["bash", "-e", "-c", f"{_PRELUDE}\n{code}\nenv -0 > {state}"],
            cwd=self.folder,
            env=self.environment,
            input=question,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        self.environment = _variables(state)
        return done.stdout + done.stderr

    def _start(self, words: list[str]) -> None:
        environment = _variables(self.folder / "noted" / "environment")
        program, *options = words
        if program == "prometheus":
            self.stack.enter_context(_prometheus(options, self.folder, environment))
            return
        self._server.close()
        settings = {
            name: text for name, text in environment.items() if name.startswith(("GENAI_", "HF_", "HOME", "PATH"))
        }
        server = run_server(
            self.folder / "noted", *options[1:], settings=settings, cwd=self.folder, port=int(environment["PORT"])
        )
        self._server.enter_context(server)


def missing_lines(expected: str, output: str) -> list[str]:
    """The lines that do not follow one after another in an output."""
    lines, missing = iter(output.splitlines()), []
    for line in expected.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.match(found) for found in lines):
            missing.append(line)
    return missing


def _joined(code: str) -> str:
    """The code with each command in one line, without comments behind it."""
    return re.sub(r"[ \t]+# .*", "", re.sub(r"\\\n\s*", " ", code))


def _variables(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().split("\0") if "=" in line)


@contextmanager
def _prometheus(options: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *options], cwd=folder, env=environment, stdout=log, stderr=log)
    (address,) = (option.partition("=")[2] for option in options if "listen-address" in option)
    try:
        wait_until(lambda: process.poll() is not None or _has_scraped(address))
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(90)


def _has_scraped(address: str) -> bool:
    """Whether a Prometheus has a result of its first target."""
    try:
        found = httpx.get(f"http://{address}/api/v1/query", params={"query": "up"}, timeout=90)
    except httpx.TransportError:
        return False
    return found.status_code == 200 and bool(found.json()["data"]["result"])


@contextmanager
def reader(folder: Path, **settings: str) -> Iterator[Reader]:
    """A reader in a folder like a clone of this repository, with an environment and a home of their own."""
    (folder / "noted").mkdir()
    for name in ("models", "scripts", "deploy", ".env.example"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    port, prometheus = free_port(), free_port()
    environment = clean_environment(
        **settings,
        HOME=str(folder / "home"),
        PORT=str(port),
        NOTED=str(folder / "noted"),
        COLUMNS="120",
        PATH=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
    )
    replaced = {"127.0.0.1:8002": f"127.0.0.1:{port}", "127.0.0.1:9090": f"127.0.0.1:{prometheus}"}
    with ExitStack() as stack:
        yield Reader(folder, stack, environment, replaced)
