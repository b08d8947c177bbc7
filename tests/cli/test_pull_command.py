"""`genai-server pull` and `models` as a user runs them, against a hub over HTTP."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Status, output and errors."""
        done = run_command(*arguments, environment=self.environment)
        return done.returncode, done.stdout, done.stderr


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
    status, out, _ = user.run("pull", "org/tiny")
    directory = user.models / "tiny"
    assert status == 0
    assert f"is in {directory}, checked" in out
    assert f"1/{len(FILES)} tokenizer.json  " in out
    assert "serve it:  genai-server serve tiny\n" in out
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.name in FILES} == FILES

    status, out, _ = user.run("models")
    assert status == 0
    assert out.startswith("tiny")
    assert "org/tiny cpu" in out

    status, out, _ = user.run("models", "check", "tiny")
    assert status == 0
    assert "ok    model.onnx.data: 6.7 MiB" in out
    config = (user.models / "tiny" / "genai_config.json").stat().st_size
    assert f"ok    genai_config.json: {config:,} bytes" in out
    assert f"all {len(FILES)} files match the hashes of org/tiny" in out

    status, out, _ = user.run("models", "remove", "tiny")
    assert (status, out) == (0, "tiny is removed: 7 MiB\n")
    assert list(user.models.iterdir()) == []


def test_damaged_file_is_found_by_check_and_fixed_by_pull(user: User) -> None:
    user.run("pull", "org/tiny")
    path = user.models / "tiny" / "model.onnx.data"
    broken = bytearray(path.read_bytes())
    broken[1000] ^= 1
    path.write_bytes(broken)

    status, out, _ = user.run("models", "check", "tiny")
    assert status == 1
    assert "fail  model.onnx.data: differs from the fetched file\n      → genai-server pull org/tiny repairs it" in out

    user.hub.sent.clear()
    assert user.run("pull", "org/tiny")[0] == 0
    assert path.read_bytes() == FILES["model.onnx.data"]
    assert [name for name, _ in user.hub.sent] == ["cpu/model.onnx.data"]

    status, out, _ = user.run("pull", "org/tiny")
    assert status == 0
    assert "already" in out


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
    assert "incomplete; pull or export it again" in user.run("models")[1]

    user.hub.before_sending = lambda _: None
    user.hub.cuts.clear()
    user.hub.sent.clear()
    assert user.run("pull", "org/tiny")[0] == 0
    assert ("cpu/model.onnx.data", 10 * MIB) in user.hub.sent
    assert (user.models / "tiny" / "model.onnx.data").read_bytes().endswith(padding)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("org/none",), 1, "there is no org/none on http://127.0.0.1:"),
        (("org/tiny", "--token", "hf_wrong"), 1, "does not accept the token (--token)"),
        (("org/tiny", "--revision", "v9"), 1, 'org/tiny has no revision "v9"'),
        (
            ("org/tiny", "--include", "cpu/*.json"),
            1,
            "the selected files are not a complete model: model directory org/tiny",
        ),
        (("no name",), 2, '"no name" is not the name of a repository'),
    ],
)
def test_failure_ends_with_one_line_and_a_status(
    user: User, arguments: tuple[str, ...], status: int, message: str
) -> None:
    found, _, errors = user.run("pull", *arguments)
    assert found == status
    assert errors.startswith("genai-server: ")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (user.models / "tiny").exists()


def test_pull_keeps_files_that_it_did_not_fetch(user: User) -> None:
    user.run("pull", "org/tiny")
    own = {"notes.txt": b"mine", "adapters/law.onnx_adapter": b"adapter"}
    for name, content in own.items():
        path = user.models / "tiny" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    removed = "chat_template.jinja"
    rest = {name: content for name, content in FILES.items() if name != removed}
    changed = {"tokenizer_config.json": FILES["tokenizer_config.json"] + b"\n"}
    user.hub.repositories["org/tiny"] = HubRepository({f"cpu/{name}": each for name, each in (rest | changed).items()})
    status, out, errors = user.run("pull", "org/tiny")
    assert status == 0, errors
    assert "checked" in out
    found = {path.relative_to(user.models / "tiny").as_posix() for path in (user.models / "tiny").rglob("*.*")}
    assert found == {*rest, *own, ".genai-server.json"}
    assert all((user.models / "tiny" / name).read_bytes() == content for name, content in (own | changed).items())


def test_unrelated_directory_is_not_replaced(user: User) -> None:
    (user.models / "tiny").mkdir(parents=True)
    status, _, errors = user.run("pull", "org/tiny")
    assert status == 2
    assert "genai-server pull org/tiny --to DIR uses another" in errors


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


def test_the_note_of_a_models_origin_can_be_read(user: User) -> None:
    user.run("pull", "org/tiny", "--to", str(user.models / "here"))
    note = json.loads((user.models / "here" / ".genai-server.json").read_bytes())
    assert (note["source"], note["folder"]) == ("org/tiny", "cpu")
    assert set(note["files"]) == set(FILES)


def test_check_names_the_remedy_for_missing_files(user: User, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in set(FILES) - {"tokenizer.json"}:
        (tmp_path / "model" / name).write_bytes(FILES[name])
    status, out, _ = user.run("models", "check", str(tmp_path / "model"))
    assert status == 1
    assert "fail  tokenizer.json: is missing\n      → copy it from the original model" in out


def test_check_says_what_becomes_of_conversations(user: User, tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}{% endfor %}"
    )
    status, out, _ = user.run("models", "check", str(tmp_path / "model"))
    assert status == 0
    assert "chat template: system messages later in a conversation: written as text of the user\n" in out


def test_an_unknown_model_is_named_with_where_it_was_looked_for(user: User) -> None:
    for command in ("check", "remove"):
        status, _, errors = user.run("models", command, "none")
        assert status == 2
        assert str(user.models) in errors


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
    status, out, errors = user.run("pull", "community/converted")
    assert status == 0, errors
    assert "modules.json is fetched from org/original, this model's original" in out
    assert (
        "it serves /v1/embeddings: vectors of 128 numbers (pooling mean, normalized), texts of at most 256 tokens"
        in out
    )
    assert not (user.models / "converted" / "onnx" / "model_fp16.onnx").exists()
    assert user.run("models", "check", "converted")[0] == 0
    assert "converted" in user.run("models", "list")[1]
    assert "is already up to date" in user.run("pull", "community/converted")[1]


def test_encoder_keeps_its_files_and_accepts_another_original(user: User) -> None:
    user.hub.repositories["org/original"] = HubRepository(original())
    changed = {
        "sentence_bert_config.json": b'{"max_seq_length": 9}',
        "1_Pooling/config.json": b'{"pooling_mode": "cls"}',
    }
    user.hub.repositories["org/other"] = HubRepository(original() | changed)
    files = converted("model.onnx", **{"sentence_bert_config.json": b'{"max_seq_length": 99}'})
    user.hub.repositories["community/converted"] = HubRepository(files, base="org/original")
    status, out, errors = user.run("pull", "community/converted")
    assert status == 0, errors
    assert "pooling mean, normalized), texts of at most 99 tokens" in out
    own = user.models / "converted" / "sentence_bert_config.json"
    assert "is already up to date" in user.run("pull", "community/converted")[1]
    out = user.run("pull", "community/converted", "--original", "org/other")[1]
    assert "pooling cls, normalized), texts of at most 99 tokens" in out
    assert own.read_bytes() == files[own.name]
    assert "is already up to date" in user.run("pull", "community/converted", "--original", "org/other")[1]


def test_graph_of_a_sentence_transformers_repository_is_chosen(user: User) -> None:
    files = original() | {"onnx/model.onnx": b"another", "onnx/model_qint8_avx512.onnx": GRAPH.read_bytes()}
    user.hub.repositories["org/original"] = HubRepository(files)
    status, out, errors = user.run("pull", "org/original", "--include", "onnx/model_qint8_avx512.onnx")
    assert status == 0, errors
    assert "pooling mean, normalized" in out
    found = read_pooling_model(user.models / "original")
    assert found is not None
    assert found.graph == "onnx/model_qint8_avx512.onnx"


def test_encoder_without_pooling_is_refused_without_an_original(user: User) -> None:
    user.hub.repositories["community/converted"] = HubRepository(converted("model.onnx"))
    user.hub.repositories["org/original"] = HubRepository(original())
    status, _, errors = user.run("pull", "community/converted")
    assert status == 1
    assert "no file describes the pooling of a text's vectors" in errors
    assert "name that to genai-server pull with --original" in errors
    assert user.run("pull", "community/converted", "--original", "org/original")[0] == 0
    user.hub.repositories["community/converted"].files["special_tokens_map.json"] = b"{}"
    assert user.run("pull", "community/converted")[0] == 0  # the original is remembered
    status, _, errors = user.run("pull", "org/original", "--original", "org/tiny", "--to", str(user.models / "other"))
    assert status == 1
    assert "org/original has no onnxruntime-genai model" in errors


def test_original_is_refused_for_a_complete_repository(user: User) -> None:
    user.hub.repositories["org/whole"] = HubRepository(original() | {"model.onnx": GRAPH.read_bytes()})
    for name in ("org/whole", "org/tiny"):
        status, _, errors = user.run("pull", name, "--original", "org/other")
        assert status == 2
        assert f"--original org/other: {name} itself describes how its model is used" in errors


def test_reranker_takes_no_pooling_from_its_base_model(user: User) -> None:
    reranker = EMBEDDINGS.with_name("demo-reranker")
    files = {path.name: path.read_bytes() for path in reranker.iterdir() if path.name != "README.md"}
    user.hub.repositories["org/original"] = HubRepository(original())
    user.hub.repositories["org/ranks"] = HubRepository(files, base="org/original")
    status, out, errors = user.run("pull", "org/ranks")
    assert status == 0, errors
    assert "it serves /v1/rerank and /v1/score: scores from 0 to 1, pairs of at most 256 tokens" in out
    status, _, errors = user.run("pull", "org/ranks", "--original", "org/original", "--to", str(user.models / "other"))
    assert status == 2
    assert "--original org/original: org/ranks itself describes how its model is used" in errors


def test_foreign_decoder_is_refused_before_its_weights_download(user: User) -> None:
    files = {"config.json": b'{"architectures": ["LlamaForCausalLM"]}', "onnx/model.onnx": b"weights" * 100}
    user.hub.repositories["community/chats"] = HubRepository(files, base="org/chats")
    user.hub.repositories["org/chats"] = HubRepository({"config.json": b"{}"})
    status, _, errors = user.run("pull", "community/chats")
    assert status == 1
    assert "has no onnxruntime-genai model (no genai_config.json); genai-server export org/chats builds one" in errors
    assert "onnx/model.onnx" not in dict(user.hub.sent)
