"""`genai-server pull` and `models` as a user runs them, against a hub over HTTP."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import pytest

from genai_server.model_files.pooling_model import read_pooling_model
from tests.local_hub import HubRepository, LocalHub, run_hub
from tests.running_server import DEMO, ROOT, clean_environment, run_command, wait_until

EMBEDDINGS = ROOT / "models" / "demo-embeddings"
GRAPH = EMBEDDINGS / "model.onnx"
FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file() and path.name != "README.md"}
MIB = 1024 * 1024


@dataclass
class User:
    """A user with a models folder and a hub."""

    hub: LocalHub
    models: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in clean_environment().items() if not name.startswith("HF_")}
        return kept | {"GENAI_MODELS_DIR": str(self.models), "HF_ENDPOINT": self.hub.url, "HF_HOME": "/nonexistent"}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "genai_server", *arguments]
        return subprocess.Popen(command, cwd=ROOT, env=self.environment, text=True, stdout=PIPE, stderr=PIPE)

    def output(self, *arguments: str, status: int = 0) -> str:
        """What a command prints, which ends with this status."""
        done = run_command(*arguments, environment=self.environment)
        assert done.returncode == status, done.stderr
        return done.stdout

    def error(self, *arguments: str, status: int = 2) -> str:
        """The error of a command, which ends with this status."""
        done = run_command(*arguments, environment=self.environment)
        assert done.returncode == status, done.stderr
        return done.stderr


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository({f"cpu/{name}": content for name, content in FILES.items()})
        yield User(hub, tmp_path / "models")


def test_the_proxy_of_the_environment_is_used(user: User) -> None:
    """The hub's name is unknown here, so that only a proxy can reach it; the hub itself stands for the proxy."""
    proxy = {"HF_ENDPOINT": "http://hub.example", "HTTP_PROXY": user.hub.url, "http_proxy": user.hub.url}
    done = run_command("pull", "org/tiny", environment=user.environment | proxy)
    assert done.returncode == 0, done.stderr
    assert (user.models / "tiny" / "genai_config.json").is_file()


def test_a_pulled_model_is_whole_listed_checked_and_removed(user: User) -> None:
    directory = user.models / "tiny"
    out = user.output("pull", "org/tiny")
    assert f"is in {directory}, checked" in out
    assert f"1/{len(FILES)} tokenizer.json  " in out
    assert "serve it:  genai-server serve tiny\n" in out
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.name in FILES} == FILES
    note = json.loads((directory / ".genai-server.json").read_bytes())
    assert (note["source"], note["folder"], set(note["files"])) == ("org/tiny", "cpu", set(FILES))
    listed = user.output("models")
    assert (listed.startswith("tiny"), "org/tiny cpu" in listed) == (True, True)
    out = user.output("models", "check", "tiny")
    assert "ok    model.onnx.data: 6.7 MiB" in out
    assert f"ok    genai_config.json: {len(FILES['genai_config.json']):,} bytes" in out
    assert f"all {len(FILES)} files match the hashes of org/tiny" in out
    assert user.output("models", "remove", "tiny") == "tiny is removed: 7 MiB\n"
    assert list(user.models.iterdir()) == []


def test_damaged_file_is_found_by_check_and_fixed_by_pull(user: User) -> None:
    user.output("pull", "org/tiny")
    path = user.models / "tiny" / "model.onnx.data"
    broken = bytearray(path.read_bytes())
    broken[1000] ^= 1
    path.write_bytes(broken)
    out = user.output("models", "check", "tiny", status=1)
    assert "fail  model.onnx.data: differs from the fetched file\n      → genai-server pull org/tiny repairs it" in out
    user.hub.sent.clear()
    user.output("pull", "org/tiny")
    assert path.read_bytes() == FILES["model.onnx.data"]
    assert [name for name, _ in user.hub.sent] == ["cpu/model.onnx.data"]
    assert "already" in user.output("pull", "org/tiny")


@pytest.mark.slow
def test_killed_pull_leaves_no_model_and_is_resumed(user: User) -> None:
    sent = len(FILES["model.onnx.data"])
    padding = os.urandom(16 * MIB)
    user.hub.repositories["org/tiny"].files["cpu/model.onnx.data"] = FILES["model.onnx.data"] + padding
    process = user.start("pull", "org/tiny")
    staging = user.models / ".tiny.pull"

    def stall(path: str) -> None:
        if path == "cpu/model.onnx.data":
            user.hub.cuts[path] = [sent + 8 * MIB, 0, 0, 0, 0, 0, 0]

    user.hub.before_sending = stall
    try:
        wait_until(lambda: any(path.stat().st_size >= 10 * MIB for path in staging.glob("model.onnx.data.*.partial")))
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (user.models / "tiny").exists()
    assert "incomplete; pull or export it again" in user.output("models")
    user.hub.before_sending = lambda _: None
    user.hub.cuts.clear()
    user.hub.sent.clear()
    user.output("pull", "org/tiny")
    assert ("cpu/model.onnx.data", 10 * MIB) in user.hub.sent
    assert (user.models / "tiny" / "model.onnx.data").read_bytes().endswith(padding)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("org/none", 1, "there is no org/none on http://127.0.0.1:"),
        ("org/tiny --token hf_wrong", 1, "does not accept the token (--token)"),
        ("org/tiny --revision v9", 1, 'org/tiny has no revision "v9"'),
        ("org/tiny --include cpu/*.json", 1, "the selected files are not a complete model: model directory org/tiny"),
        ("'no name'", 2, '"no name" is not the name of a repository'),
    ],
)
def test_failure_ends_with_one_line_and_a_status(user: User, arguments: str, status: int, message: str) -> None:
    error = user.error("pull", *shlex.split(arguments), status=status)
    assert (error.startswith("genai-server: "), message in error, error.count("\n")) == (True, True, 1)
    assert not (user.models / "tiny").exists()


def test_pull_keeps_files_that_it_did_not_fetch(user: User) -> None:
    user.output("pull", "org/tiny")
    directory = user.models / "tiny"
    own = {"notes.txt": b"mine", "adapters/law.onnx_adapter": b"adapter"}
    for name, content in own.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    rest = {name: content for name, content in FILES.items() if name != "chat_template.jinja"}
    rest["tokenizer_config.json"] += b"\n"
    user.hub.repositories["org/tiny"] = HubRepository({f"cpu/{name}": content for name, content in rest.items()})
    assert "checked" in user.output("pull", "org/tiny")
    found = {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.*")}
    assert found.keys() == {*rest, *own, ".genai-server.json"}
    assert (rest | own).items() <= found.items()


def test_unrelated_directory_is_not_replaced(user: User) -> None:
    (user.models / "tiny").mkdir(parents=True)
    assert "genai-server pull org/tiny --to DIR uses another" in user.error("pull", "org/tiny")


def test_ctrl_c_ends_with_one_line_and_keeps_partial_files(user: User) -> None:
    started = []

    def interrupt(path: str) -> None:
        if path == "cpu/model.onnx.data":
            started.append(path)
            process.send_signal(signal.SIGINT)
            process.wait()

    user.hub.before_sending = interrupt
    process = user.start("pull", "org/tiny")
    _, errors = process.communicate(timeout=90)
    assert started
    assert process.returncode == 1
    assert errors == "genai-server: stopped; the same command continues from here\n"
    assert (user.models / ".tiny.pull" / "model.onnx").exists()


def test_check_names_the_remedy_for_missing_files(user: User, tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer.json"))
    out = user.output("models", "check", str(tmp_path / "model"), status=1)
    assert "fail  tokenizer.json: is missing\n      → copy it from the original model" in out


def test_check_says_what_becomes_of_conversations(user: User, tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}{% endfor %}"
    )
    out = user.output("models", "check", str(tmp_path / "model"))
    assert "chat template: system messages later in a conversation: written as text of the user\n" in out


@pytest.mark.parametrize("command", ["check", "remove"])
def test_an_unknown_model_is_named_with_where_it_was_looked_for(user: User, command: str) -> None:
    assert str(user.models) in user.error("models", command, "none")


def converted(graph: str, **more: bytes) -> dict[str, bytes]:
    """The demo model as repositories of converted models have it: without a pooling configuration."""
    kept = ("config.json", "tokenizer.json", "tokenizer_config.json")
    return {name: (EMBEDDINGS / name).read_bytes() for name in kept} | {graph: GRAPH.read_bytes()} | more


def original() -> dict[str, bytes]:
    """The demo model in the layout of sentence-transformers, without a graph."""
    return {path.relative_to(EMBEDDINGS).as_posix(): path.read_bytes() for path in EMBEDDINGS.rglob("*.json")}


def test_encoder_takes_its_pooling_from_the_original_repository(user: User) -> None:
    user.hub.repositories["org/original"] = HubRepository(original())
    files = converted("onnx/model.onnx", **{"onnx/model_fp16.onnx": b"other"})
    user.hub.repositories["community/converted"] = HubRepository(files, base="org/original")
    out = user.output("pull", "community/converted")
    assert "modules.json is fetched from org/original, this model's original" in out
    assert "it serves /v1/embeddings: vectors of 128 numbers (pooling mean, normalized), texts of at most 256" in out
    assert not (user.models / "converted" / "onnx" / "model_fp16.onnx").exists()
    user.output("models", "check", "converted")
    assert "converted" in user.output("models", "list")
    assert "is already up to date" in user.output("pull", "community/converted")


def test_encoder_keeps_its_files_and_accepts_another_original(user: User) -> None:
    pooling = {"1_Pooling/config.json": b'{"pooling_mode": "cls"}'}
    other = original() | pooling | {"sentence_bert_config.json": b'{"max_seq_length": 9}'}
    files = converted("model.onnx", **{"sentence_bert_config.json": b'{"max_seq_length": 99}'})
    user.hub.repositories["org/original"] = HubRepository(original())
    user.hub.repositories["org/other"] = HubRepository(other)
    user.hub.repositories["community/converted"] = HubRepository(files, base="org/original")
    for arguments, pooling_mode in (((), "mean"), (("--original", "org/other"), "cls")):
        out = user.output("pull", "community/converted", *arguments)
        assert f"pooling {pooling_mode}, normalized), texts of at most 99 tokens" in out
        assert "is already up to date" in user.output("pull", "community/converted", *arguments)
    own = user.models / "converted" / "sentence_bert_config.json"
    assert own.read_bytes() == files[own.name]


def test_graph_of_a_sentence_transformers_repository_is_chosen(user: User) -> None:
    files = original() | {"onnx/model.onnx": b"another", "onnx/model_qint8_avx512.onnx": GRAPH.read_bytes()}
    user.hub.repositories["org/original"] = HubRepository(files)
    out = user.output("pull", "org/original", "--include", "onnx/model_qint8_avx512.onnx")
    assert "pooling mean, normalized" in out
    found = read_pooling_model(user.models / "original")
    assert found is not None
    assert found.graph == "onnx/model_qint8_avx512.onnx"


def test_encoder_without_pooling_is_refused_without_an_original(user: User) -> None:
    user.hub.repositories["community/converted"] = HubRepository(converted("model.onnx"))
    user.hub.repositories["org/original"] = HubRepository(original())
    error = user.error("pull", "community/converted", status=1)
    assert "no file describes the pooling of a text's vectors" in error
    assert "name that to genai-server pull with --original" in error
    user.output("pull", "community/converted", "--original", "org/original")
    user.hub.repositories["community/converted"].files["special_tokens_map.json"] = b"{}"
    user.output("pull", "community/converted")  # the original is remembered
    other = ["--original", "org/tiny", "--to", str(user.models / "other")]
    assert "org/original has no onnxruntime-genai model" in user.error("pull", "org/original", *other, status=1)


def test_a_complete_repository_needs_no_original(user: User) -> None:
    reranker = EMBEDDINGS.with_name("demo-reranker")
    files = {path.name: path.read_bytes() for path in reranker.iterdir() if path.name != "README.md"}
    user.hub.repositories["org/original"] = HubRepository(original())
    user.hub.repositories["org/ranks"] = HubRepository(files, base="org/original")
    user.hub.repositories["org/whole"] = HubRepository(original() | {"model.onnx": GRAPH.read_bytes()})
    out = user.output("pull", "org/ranks", "--to", str(user.models / "ranks"))
    assert "it serves /v1/rerank and /v1/score: scores from 0 to 1, pairs of at most 256 tokens" in out
    for name in ("org/whole", "org/tiny", "org/ranks"):
        error = user.error("pull", name, "--original", "org/original", "--to", str(user.models / "other"))
        assert f"--original org/original: {name} itself describes how its model is used" in error


def test_foreign_decoder_is_refused_before_its_weights_download(user: User) -> None:
    files = {"config.json": b'{"architectures": ["LlamaForCausalLM"]}', "onnx/model.onnx": b"weights" * 100}
    user.hub.repositories["community/chats"] = HubRepository(files, base="org/chats")
    user.hub.repositories["org/chats"] = HubRepository({"config.json": b"{}"})
    error = user.error("pull", "community/chats", status=1)
    assert "has no onnxruntime-genai model (no genai_config.json); genai-server export org/chats builds one" in error
    assert "onnx/model.onnx" not in dict(user.hub.sent)
