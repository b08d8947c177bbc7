"""Tests that others wrote for servers of the same API: llama.cpp's of its server, and gpt-oss' compatibility test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from _peers.environment import Environment, PeerUnavailable
from _peers.llama_cpp import PACKAGE, sources_of

from .client import Check, Client, Model, Place, Registry
from .program import run

_SECONDS = 400.0
_LLAMA_CPP = "vendor/llama.cpp/tools/server/tests"
# What each file of llama.cpp's tests is about. Other files test what only that server has.
_FILES = {
    "test_chat_completion": "chat completions",
    "test_completion": "completions",
    "test_compat_anthropic": "messages",
    "test_compat_oai_responses": "responses",
    "test_tokenize": "tokenize",
}
# Tests that cannot pass here, with all their cases, by the reason; a star stands for any end.
_NOT_HERE = {
    "counts or words of the small model that they load": (
        "test_chat_completion",
        "test_chat_completion_cached_tokens",
        "test_chat_completion_stream",
        "test_return_progress",
        "test_completion_with_response_format[response_format1-*",
        "test_completion_with_response_format[response_format3-*",
    ),
    "a `system_fingerprint` that begins with `b`": (
        "test_chat_completion_with_openai_library",
        "test_completion_with_openai_library",
    ),
    "a setting of another server that is started for the test": (
        "test_chat_template",
        "test_chat_template_assistant_prefill",
        "test_chat_template_continue_final_message_vllm_compat",
        "test_apply_chat_template",
        "test_anthropic_thinking_history*",
        "test_tokenize_with_bos",
    ),
    "fields of llama.cpp alone": (
        "test_completion_with_json_schema",
        "test_completion_with_grammar",
        "test_completion_with_response_format[response_format0-*",
        "test_chat_completion_with_timings_per_token",
        "test_chat_completions_multiple_choices",
        "test_chat_completions_token_count",
        "test_verbose_debug",
        "test_responses_stream_with_llama_telemetry",
    ),
    "llama.cpp's own form of an error": ("test_context_size_exceeded*", "test_anthropic_tool_result_with_image"),
    "llama.cpp's own `/completion`": (
        "test_completion",
        "test_completion_stream",
        "test_completion_stream_vs_non_stream",
        "test_consistent_result*",
        "test_different_result*",
        "test_nocache_long_input_prompt",
        "test_json_prompt*",
        "test_completion_with_tokens_input",
        "test_completion_parallel_slots",
        "test_completion_unified",
        "test_completion_response_fields",
        "test_n_probs*",
        "test_logit_bias[*",
        "test_cancel_request",
        "test_completion_prompt_cache",
    ),
    "models to download": ("test_anthropic_vision*", "test_anthropic_thinking_with_reasoning_model"),
    "an empty list of messages, which Anthropic refuses": ("test_anthropic_empty_messages",),
}
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
    command += ["--rootdir", tests, f"--junitxml={report}", *(tests / "unit" / f"{name}.py" for name in _FILES)]
    # DEBUG_EXTERNAL has them use a server that runs.
    environment = {"DEBUG_EXTERNAL": "1", "PORT": place.url.rpartition(":")[2], "PYTHONPATH": str(tests)}
    ended = run(command, environment, tests, _SECONDS)
    if not report.exists():
        return [Check("pytest", ended.why or "it writes no report")]
    return list(_of_report(report.read_text(encoding="utf-8")))


def _of_report(report: str) -> Iterator[Check]:
    """The tests of pytest's report that apply here."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.get("classname", "").rpartition(".")[2]
        name = case.get("name", "")
        if case.find("skipped") is not None or why_not_here(name):
            continue
        failure = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        why = "" if failure is None else f"{name}: {failure.get('message', '')}"
        yield Check(_FILES.get(file, file), why)


def why_not_here(name: str) -> str:
    """Why a test of llama.cpp's does not apply; "" if it does."""
    return next((reason for reason, names in _NOT_HERE.items() if any(_means(name, one) for one in names)), "")


def _means(name: str, pattern: str) -> bool:
    """Whether a name of _NOT_HERE means this test."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name.partition("[")[0] == pattern


_OPENAI = "gpt-oss"
_CASES = "cases.jsonl"
# A word that only the tool's result has.
_RESULTS = {
    "get_system_health": "uptime_seconds",
    "markdown_to_html": '{"html":',
    "detect_language": '"language"',
    "generate_chart": "image_png_base64",
    "query_database": "row_count",
    "get_weather": '"weather"',
}
_PROVIDERS = """export const PROVIDERS: any = {
  genai: {
    apiBaseUrl: %s,
    apiKey: "none",
    apiType: ["responses", "chat"],
    modelName: "onnx-genai",
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
    told = "".join(json.dumps({**case, "instructions": _script(case)}) + "\n" for case in given)
    (suite / "told.jsonl").write_text(told, encoding="utf-8")
    (suite / "providers.ts").write_text(_PROVIDERS % json.dumps(f"{place.url}/v1"), encoding="utf-8")
    for old in suite.glob("rollout_*.jsonl"):
        old.unlink()
    command: list[str | Path] = [place.commands / "tsx", "index.ts", "--provider", "genai", "--cases", "told.jsonl"]
    ended = run(command, {}, suite, _SECONDS)
    found = [json.loads(line) for path in suite.glob("rollout_*.jsonl") for line in path.read_text().splitlines()]
    checks = [_of_case(each) for each in found]
    complete = len(checks) == 2 * len(given)
    return checks if complete else [*checks, Check("the program", ended.why or f"it tells {len(checks)} results")]


def _script(case: dict[str, str]) -> str:
    """What the model is to do: think, call the tool with the arguments that are expected, and end."""
    call = {"name": case["tool_name"], "arguments": json.loads(case["expected_arguments"])}
    written = json.dumps(call, ensure_ascii=False)
    return (
        f"script: say <think>⏎I call it.⏎</think>⏎⏎<tool_call>⏎{written}⏎</tool_call>\n"
        f"script after {_RESULTS[case['tool_name']]}: say done"
    )


def _of_case(told: dict[str, object]) -> Check:
    """A line of its results; `error` stands where both APIs have none."""
    name, result = str(told["tool_name"]), told.get("result")
    if not isinstance(result, dict):
        return Check("the program", f"{name}: {told.get('error')}")
    details = {**result["details"], **result["toolCallingDetails"]}
    why = "" if result["success"] and not details.get("warning") else f"{name}: {details}"
    return Check(f"its cases over {result['apiType']}", why)


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
