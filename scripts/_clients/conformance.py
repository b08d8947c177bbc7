"""Third-party tests for servers of the same API: llama.cpp's server tests, and gpt-oss' compatibility test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from _peers.environment import Environment, PeerUnavailable
from _peers.llama_cpp import PACKAGE, sources_of

from .client import Check, Client, Model, Place, Registry
from .program import run
from .verdicts import FILES, of_case, of_report, script_of

_SECONDS = 400.0
_LLAMA_CPP = "vendor/llama.cpp/tools/server/tests"
# The small model's words, which no other model says.
_WORDS = ("(Suddenly)+", "(going|bed)+")
_PLUGIN = f"""import utils
_match = utils.match_regex
utils.match_regex = lambda regex, text: regex in {_WORDS!r} or _match(regex, text)
"""


def _fetch_llama_cpp(folder: Path) -> str:
    sources = sources_of(Environment(folder))
    tests = folder / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(sources / _LLAMA_CPP, tests)
    return PACKAGE.partition("==")[2]


def _check_llama_cpp(place: Place) -> list[Check]:
    tests, report = place.folder / "tests", place.folder / "report.xml"
    report.unlink(missing_ok=True)
    (tests / "other_model.py").write_text(_PLUGIN, encoding="utf-8")
    command: list[str | Path] = [place.commands / "python", "-m", "pytest", "-q", "-p", "other_model"]
    command += ["--rootdir", tests, f"--junitxml={report}", *(tests / "unit" / f"{name}.py" for name in FILES)]
    # DEBUG_EXTERNAL has them use a server that runs.
    environment = {"DEBUG_EXTERNAL": "1", "PORT": place.url.rpartition(":")[2], "PYTHONPATH": str(tests)}
    ended = run(command, environment, tests, _SECONDS)
    if not report.exists():
        return [Check("pytest", ended.why or "it writes no report")]
    return list(of_report(report.read_text(encoding="utf-8")))


_OPENAI = "gpt-oss"
_CASES = "cases.jsonl"
_PROVIDERS = """export const PROVIDERS: any = {
  genai: {
    apiBaseUrl: %s,
    apiKey: "none",
    apiType: ["responses", "chat"],
    modelName: "demo",
    providerDetails: {},
  },
};
"""


def _fetch_gpt_oss(folder: Path) -> str:
    checkout = folder.parent / "checkouts" / _OPENAI
    suite = folder / "suite"
    if not (checkout / "compatibility-test").is_dir():
        raise PeerUnavailable(f"no registry has it; it runs from a checkout of openai/{_OPENAI} at {checkout}")
    if not (suite / "node_modules").exists():
        shutil.copytree(checkout / "compatibility-test", suite, dirs_exist_ok=True)
        Environment(suite).run(["npm", "ci", "--prefix", suite, "--no-audit", "--no-fund", "--ignore-scripts"])
    return str(json.loads((suite / "node_modules/@openai/agents/package.json").read_text(encoding="utf-8"))["version"])


def _check_gpt_oss(place: Place) -> list[Check]:
    suite = place.folder / "suite"
    given = [json.loads(line) for line in (suite / _CASES).read_text(encoding="utf-8").splitlines() if line.strip()]
    cases = "".join(json.dumps({**case, "instructions": script_of(case)}) + "\n" for case in given)
    (suite / "cases.jsonl").write_text(cases, encoding="utf-8")
    (suite / "providers.ts").write_text(_PROVIDERS % json.dumps(f"{place.url}/v1"), encoding="utf-8")
    for old in suite.glob("rollout_*.jsonl"):
        old.unlink()
    command: list[str | Path] = [place.commands / "tsx", "index.ts", "--provider", "genai", "--cases", "cases.jsonl"]
    ended = run(command, {}, suite, _SECONDS)
    found = [json.loads(line) for path in suite.glob("rollout_*.jsonl") for line in path.read_text().splitlines()]
    checks = [of_case(each) for each in found]
    complete = len(checks) == 2 * len(given)
    return checks if complete else [*checks, Check("the program", ended.why or f"it tells {len(checks)} results")]


CONFORMANCE = (
    Client(
        "llama.cpp's server tests",
        ("pytest", "openai", "requests", "wget", "filelock", "aiohttp", "numpy", "prometheus-client", "pip"),
        _check_llama_cpp,
        model=Model.DEMO,
        fetch=_fetch_llama_cpp,
    ),
    Client("gpt-oss compatibility test", ("tsx",), _check_gpt_oss, Registry.NPM, fetch=_fetch_gpt_oss),
)
