"""Suites that measure or examine a server, on the demo model, which has a tokenizer. None fetches a data set."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from _load.server import DEMO

from .client import Check, Client, Model, Place
from .program import run

_SECONDS = 240.0
_REQUESTS = 4
_CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}
_SCORED = """
task: capitals
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
"""
_GENERATED = """
task: capitals_said
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{sentence}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 32
metric_list:
  - metric: exact_match
"""
_DATA = """dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
"""


def _folder(place: Place) -> Path:
    folder = place.folder / "results"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _environment(place: Place) -> dict[str, str]:
    return {"PATH": f"{place.commands}{os.pathsep}{os.environ['PATH']}", "HF_DATASETS_OFFLINE": "1"}


def _check_aiperf(place: Place) -> list[Check]:
    folder = _folder(place)
    command = ["aiperf", "profile", "--model", "demo", "--url", place.url, "--endpoint-type", "chat"]
    command += ["--streaming", "--tokenizer", str(DEMO), "--concurrency", "2", "--request-count", str(_REQUESTS)]
    command += ["--isl", "32", "--osl", "8", "--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(folder)]
    # Told to stay off the hub, it takes a folder for a name there.
    ended = run(command, _environment(place) | {"HF_HUB_OFFLINE": ""}, place.folder, _SECONDS)
    reports = list(folder.rglob("profile_export_aiperf.json"))
    why = ended.why or ("" if reports else "it writes no report")
    if not why:
        counted = json.loads(reports[0].read_text(encoding="utf-8")).get("request_count", {}).get("avg")
        why = "" if counted == _REQUESTS else f"{counted} of {_REQUESTS} requests are counted"
    return [Check("streamed chat, synthetic prompts", why)]


def _check_guidellm(place: Place) -> list[Check]:
    folder = _folder(place)
    command = ["guidellm", "run", "--backend", f"kind=openai_http,target={place.url},model=demo"]
    command += ["--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={_REQUESTS}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={DEMO}", "--disable-console-interactive"]
    more = {"GUIDELLM__DEFAULT_RESULTS_DIR": str(folder)}
    ended = run(command, _environment(place) | more, folder, _SECONDS)
    reports = list(folder.rglob("benchmarks.json"))
    why = ended.why or ("" if reports else "it writes no report")
    if not why:
        totals = json.loads(reports[0].read_text(encoding="utf-8"))["benchmarks"][0]["metrics"]["request_totals"]
        why = "" if totals["successful"] == _REQUESTS else f"it counts {totals}"
    return [Check("synthetic prompts", why)]


def _check_lm_eval(place: Place) -> list[Check]:
    folder = _folder(place)
    data = folder / "capitals.jsonl"
    choices = list(_CAPITALS.values())
    questions = [
        {
            "question": f"What is the capital of {country}?",
            "sentence": f"The capital of {country} is {capital}.",
            "choices": choices,
            "answer": choices.index(capital),
        }
        for country, capital in _CAPITALS.items()
    ]
    data.write_text("".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8")
    for name, task in (("capitals", _SCORED), ("capitals_said", _GENERATED)):
        (folder / f"{name}.yaml").write_text(task + _DATA.format(file=data), encoding="utf-8")
    tokenizer = f"tokenizer_backend=huggingface,tokenizer={DEMO}"
    return [
        _evaluate(place, folder, "local-completions", "completions", "capitals", "acc", tokenizer),
        # The same by the server's own tokenizer.
        _evaluate(place, folder, "local-completions", "completions", "capitals", "acc", "tokenizer_backend=remote"),
        _evaluate(
            place,
            folder,
            "local-chat-completions",
            "chat/completions",
            "capitals_said",
            "exact_match",
            "tokenizer_backend=None",
        ),
    ]


def _evaluate(place: Place, folder: Path, model: str, path: str, task: str, figure: str, tokenizer: str) -> Check:
    """The demo model knows these capitals, so that all answers are right if the requests are understood."""
    command = ["lm_eval", "--model", model, "--tasks", task, "--include_path", str(folder)]
    command += ["--model_args", f"base_url={place.url}/v1/{path},model=demo,max_retries=1,{tokenizer}"]
    command += ["--output_path", str(folder / task), *(["--apply_chat_template"] if "chat" in model else [])]
    ended = run(command, _environment(place) | {"OPENAI_API_KEY": "none"}, folder, _SECONDS)
    results = list((folder / task).rglob("results*.json"))
    why = ended.why or ("" if results else "it writes no results")
    if not why:
        found = json.loads(results[0].read_text(encoding="utf-8"))["results"][task]
        why = "" if found[f"{figure},none"] == 1.0 else f"it counts {found}"
    own = ", the server's tokenizer" if "remote" in tokenizer else ""
    return Check(f"{model}, a task of {len(_CAPITALS)} questions of its own{own}", why)


SUITES = (
    Client("aiperf", ("aiperf",), _check_aiperf, model=Model.DEMO),
    Client("GuideLLM", ("guidellm",), _check_guidellm, model=Model.DEMO),
    Client("lm-eval", ("lm_eval[api]", "transformers"), _check_lm_eval, model=Model.DEMO),
)
