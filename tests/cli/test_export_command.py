"""`genai-server export` as a user runs it: with a builder that writes the demo model, and with the real one."""

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genai_server.cli.export_command import _agrees
from genai_server.model_files.config_files import read_mask_token
from tests.fake_builder import fake_builder
from tests.local_hub import HubRepository, run_hub
from tests.running_server import ROOT, clean_environment, run_command, run_server

SOURCE = {"config.json": b"{}", "model.safetensors": b"w" * 100, "tokenizer.json": b'{"original": true}'}
GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "<end>"],
    "tokenizer.ggml.token_type": [1, 3],
    "tokenizer.ggml.eos_token_id": 1,
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
slow = pytest.mark.slow


def gguf(**changes: object) -> bytes:
    return json.dumps(GGUF | {name.replace("__", "."): value for name, value in changes.items()}).encode()


class Built:
    """A model that was built, and what the command said."""

    def __init__(self, directory: Path, said: str) -> None:
        self.directory, self.said = directory, said
        self.log = (directory / "export.log").read_text(encoding="utf-8")

    def read(self, name: str) -> Any:
        """The content of a JSON file."""
        return json.loads((self.directory / name).read_bytes())

    @property
    def note(self) -> Any:
        return self.read(".genai-server.json")


class User:
    """A user with a builder's libraries, an original in the folder `tiny`, and a folder of models."""

    def __init__(self, folder: Path, *, with_gguf: bool) -> None:
        self.folder, self.models, self.source = folder, folder / "models", folder / "tiny"
        self.libraries = fake_builder(folder / "libraries", with_gguf=with_gguf)
        for name, content in SOURCE.items():
            self.write(name, content)

    def write(self, name: str, content: object) -> None:
        """Write a file of the original: bytes, or JSON."""
        self.source.mkdir(exist_ok=True)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (self.source / name).write_bytes(data)

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in clean_environment().items() if not name.startswith("HF_")}
        given = kept | {"GENAI_MODELS_DIR": str(self.models)} | environment
        paths = os.pathsep.join([str(self.libraries), str(ROOT / "src")])
        return run_command("export", *arguments, environment=given, cwd=self.folder, python_path=paths)

    def export(self, *arguments: str, to: str = "tiny-int4-cpu", of: str = "tiny", **environment: str) -> Built:
        """The model of this name that is built of an original."""
        done = self.run(of, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return Built(self.models / to, done.stdout)

    def refusal(self, *arguments: str, of: str = "tiny", status: int = 2, **environment: str) -> str:
        """The error of a command that builds nothing."""
        done = self.run(of, *arguments, **environment)
        assert done.returncode == status, done.stderr
        assert not list(self.models.glob("*/model.onnx"))
        return done.stderr

    def built(self) -> list[str]:
        return sorted(path.name for path in self.models.iterdir())


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path, with_gguf=False)


@pytest.fixture
def gguf_user(tmp_path: Path) -> User:
    """A user who has the libraries for GGUF, and such a file instead of the original."""
    made = User(tmp_path, with_gguf=True)
    shutil.rmtree(made.source)
    made.write("tiny.gguf", gguf())
    return made


def test_directory_becomes_a_checked_model_with_fast_settings(user: User) -> None:
    built = user.export()
    assert "Reading layer 0\n" in built.said
    assert "a line for the log only" not in built.said
    assert "genai-server serve tiny-int4-cpu\n" in built.said
    options = ("'int4'", "'cpu'", "'prune_lm_head=true'", "'block_size=32'", "'accuracy_level=4'")
    assert [text for text in ("a line for the log only", "1 1 [", *options) if text not in built.log] == []
    # The original, not the builder's output.
    assert built.read("tokenizer.json") == {"original": True}
    assert "block_size=32" in built.note["built"]
    assert user.built() == ["tiny-int4-cpu"]


@slow
@pytest.mark.parametrize(
    ("settings", "expected"), [({"_from_model_config": True}, (0.6, True)), ({"do_sample": False}, (1.0, False))]
)
def test_sampling_defaults_are_the_sources_or_its_familys(
    user: User, settings: dict[str, bool], expected: tuple[float, bool]
) -> None:
    user.write("config.json", {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
    user.write("generation_config.json", settings)
    search = user.export().read("genai_config.json")["search"]
    assert (search.get("temperature", 1.0), bool(search.get("do_sample"))) == expected


@pytest.mark.parametrize("mask_token", [None, 7])
def test_mask_token_of_a_parallel_draft_model_is_kept(user: User, mask_token: int | None) -> None:
    given = {} if mask_token is None else {"pard_token": mask_token}
    user.write("config.json", {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **given})
    directory = user.export().directory
    assert (directory / "config.json").exists() == (mask_token is not None)
    assert read_mask_token(directory, 1920) == mask_token


@slow
def test_mobius_builds_what_the_other_builder_cannot(user: User) -> None:
    described = {"architectures": ["SmolLM3ForCausalLM"], "max_position_embeddings": 4096, "eos_token_id": 2}
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}
    user.write("config.json", described)
    user.write("generation_config.json", {"eos_token_id": [2, 3], **sampling})
    built = user.export("--precision", "fp32", to="tiny-fp32-cpu")
    assert "mobius builds it" in built.said
    model, search = (built.read("genai_config.json")[part] for part in ("model", "search"))
    assert {"type": "decoder", "context_length": 4096, "eos_token_id": [2, 3]}.items() <= model.items()
    assert {"max_length": 4096, "top_k": 50, **sampling}.items() <= search.items()
    assert built.note["built"] == "fp32 cpu mobius"
    assert built.read("tokenizer.json") == {"original": True}
    assert "mobius is called with" in built.log


WHISPER = {"architectures": ["WhisperForConditionalGeneration"]}
EXPERTS = {"architectures": ["GraniteMoeHybridForCausalLM"], "num_local_experts": 8}
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512, "num_attention_heads": 4}
SMALL = _SIZES | {"intermediate_size": 128, "architectures": ["LlamaForCausalLM"]}
QUANTIZED = {"architectures": ["Qwen2ForCausalLM"], "quantization_config": AWQ}


@slow
@pytest.mark.parametrize(
    ("config", "arguments", "model", "has", "lacks"),
    [
        (SMALL, "", "tiny-int8-cpu", "8 bits, because models below about 1 billion weights", "k_quant_mixed"),
        (WHISPER, "--precision fp32", "tiny-fp32-cpu", "'fp32'", "--extra_options"),
        ({}, "--extra block_size=64 filename=model.onnx", "tiny-int4-cpu", "'block_size=64'", "k_quant_mixed"),
        ({}, "--device directml", "tiny-int4-directml", "'dml'", "block_size"),
        (QUANTIZED, "", "tiny-int4-cpu", "'block_size=64'", "'block_size=32'"),
        ({}, "--extra lose=chat_template.jinja", "tiny-int4-cpu", "it takes raw prompts (/v1/", "genai-server chat"),
    ],
    ids=["small", "Whisper", "the user's", "another device", "quantized weights", "without a chat template"],
)
def test_options_of_the_builder_fit_the_model_and_the_device(
    user: User, config: dict[str, Any], arguments: str, model: str, has: str, lacks: str
) -> None:
    user.write("config.json", config)
    user.write("tokenizer.json", {"added_tokens": [{"content": "<|0.00|>"}]})
    built = user.export(*arguments.split(), to=model)
    shown = built.said + built.log
    assert (has in shown, lacks in shown) == (True, False), shown
    assert (built.directory / "model.onnx").is_file()


@slow
@pytest.mark.parametrize(("device", "shares"), [("cpu", False), ("cuda", True)])
def test_a_head_for_drafts_is_built_so_that_cpus_can_load_it(user: User, device: str, shares: bool) -> None:
    described = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"mtp_num_hidden_layers": 1}}
    user.write("config.json", described)
    built = user.export("--device", device, "--extra", "share=1", to=f"tiny-int4-{device}")
    assert "'prune_lm_head=false'" in built.log
    assert "exclude_mtp" not in built.log
    assert ("shared_initializers" in built.read("genai_config.json")["model"]["decoder"]) is shares


@slow
@pytest.mark.parametrize(("type", "named"), [("qwen3vl", "qwen3_vl"), ("qwen3_vl_text", None)])
def test_the_type_is_corrected_and_text_only_is_said(user: User, type: str, named: str | None) -> None:
    built = user.export("--extra", f"type={type}")
    assert named in (None, built.read("genai_config.json")["model"]["type"])
    assert ("it is served for text only" in built.said) is (named is None)


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({}, "--to tiny", "already exists"),
        ({}, "--extra block_size", "an option is NAME=VALUE"),
        (WHISPER, "", "lacks <|0.00|> and the other tokens for times"),
        (QUANTIZED, "--precision int8", "the weights are quantized already (awq with 4 bits in groups of 64)"),
        (QUANTIZED, "--extra block_size=128", "--extra block_size=128: the weights are quantized already"),
        (EXPERTS, "", "GraniteMoeHybridForCausalLM cannot be built for cpu in int4: the model builder leaves out its"),
    ],
    ids=["existing directory", "no value", "Whisper without times", "precision", "blocks", "would answer wrongly"],
)
def test_what_cannot_be_built_is_refused(user: User, config: dict[str, Any], arguments: str, message: str) -> None:
    user.write("config.json", config)
    user.write("tokenizer.json", {"added_tokens": [{"content": "<|notimestamps|>"}]})
    assert message in user.refusal(*arguments.split())
    assert not user.models.exists()


def test_a_model_that_would_answer_wrongly_is_built_if_it_may(user: User) -> None:
    user.write("config.json", EXPERTS)
    user.export("--unchecked")


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ("break=1", "ONNX Runtime cannot load what the builder wrote: "),
        ("lose=model.onnx.data", "the builder's output is not a complete model"),
    ],
)
def test_an_output_that_cannot_be_loaded_is_no_model(user: User, extra: str, error: str) -> None:
    assert error in user.refusal("--extra", extra, status=1)
    assert not (user.models / "tiny-int4-cpu").exists()


def test_failed_builder_shows_its_last_lines_and_leaves_a_log(user: User) -> None:
    error = user.refusal("--extra", "fail=1", status=1)
    assert error.startswith("genai-server: the model builder failed (status 1); its log is ")
    assert error.endswith("out of something\n")
    (log,) = user.models.iterdir()
    assert str(log) in error
    assert "a line for the log only" in log.read_text(encoding="utf-8")


def test_a_repository_is_fetched_built_and_its_original_removed(user: User) -> None:
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository(SOURCE | {"pytorch_model.bin": b"x"})
        built = user.export(of="org/tiny", HF_ENDPOINT=hub.url)
        commit = hub.repositories["org/tiny"].commit
    assert "pytorch_model.bin" not in [path for path, _ in hub.sent]
    assert user.built() == ["tiny-int4-cpu"]
    assert (built.note["source"], built.note["revision"]) == ("org/tiny", commit)


def test_missing_pytorch_is_reported_before_any_download(user: User) -> None:
    (user.libraries / "torch.py").unlink()
    (user.libraries / "transformers.py").unlink()
    shutil.rmtree(user.libraries / "onnxruntime_genai" / "models")
    error = user.refusal(of="org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert "onnxruntime_genai.models.builder: " in error
    assert "[export]'" in error


# A Python that has no libraries until its pip has installed something.
PYTHON = """#!/bin/sh
if [ "$2" = pip ]; then
    echo "$@" >{log}
    if [ -e {folder}/broken ]; then exit 7; fi
    exit 0
fi
[ -e {log} ] || unset PYTHONPATH
exec {python} "$@"
"""


def test_missing_packages_are_installed_on_request(user: User) -> None:
    path = user.folder / "bare" / "python"
    path.parent.mkdir()
    log, broken = path.parent / "log", path.parent / "broken"
    words = {"log": log, "folder": path.parent, "python": sys.executable}
    path.write_text(PYTHON.format(**{name: shlex.quote(str(value)) for name, value in words.items()}), encoding="utf-8")
    path.chmod(0o755)
    assert "lacks torch, " in user.refusal("--python", str(path))
    assert not log.exists()
    broken.touch()
    assert "failed (status 7), as the lines above say" in user.refusal("--python", str(path), "--yes")
    broken.unlink()
    log.unlink()
    user.export("--python", str(path), "--yes")
    assert log.read_text(encoding="utf-8").startswith("-m pip install ")
    assert "export]" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "agrees"), [("y\n", True), ("yes\n", True), ("\n", False), ("no", False), ("", False)]
)
def test_packages_are_installed_if_a_person_agrees(monkeypatch: pytest.MonkeyPatch, said: str, agrees: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(said))
    monkeypatch.setattr("sys.stderr", screen)
    assert _agrees("install them?") is agrees
    assert screen.getvalue() == "install them? [y/N] "


def test_time_and_memory_are_said_before_weights_are_fetched(user: User) -> None:
    config = {"hidden_size": 1024, "num_hidden_layers": 28, "vocab_size": 151_936, "num_attention_heads": 16}
    more = {"intermediate_size": 3072, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    described = json.dumps(config | more | {"architectures": ["Qwen3ForCausalLM"]}).encode()
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository(SOURCE | {"config.json": described})
        lines = user.export(of="org/tiny", to="tiny-int8-cpu", HF_ENDPOINT=hub.url).said.splitlines()
    cost, fetching = (line for line in lines if line.startswith(("0.6 billion weights", "fetching ")))
    assert cost.startswith("0.6 billion weights: building takes about ")
    assert "GiB of memory" in cost
    assert f"from {hub.url}" in fetching


@slow
def test_built_model_is_served(user: User) -> None:
    paths = os.pathsep.join([str(user.libraries), str(ROOT / "src")])
    settings = {"GENAI_MODELS_DIR": str(user.models), "PYTHONPATH": paths}
    program = [sys.executable, "-m", "genai_server", "export", str(user.source), "--serve", "--device", "scripted"]
    with run_server(user.folder, settings=settings, program=program) as server:
        assert server.client.get("/v1/models").json()["data"][0]["id"] == "tiny-int4-cpu"


def test_weights_read_wrongly_are_refused_before_the_download(user: User) -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "quantization_config": AWQ | {"version": "gemv"}}
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository(SOURCE | {"config.json": json.dumps(config).encode()})
        assert "reads the version gemm only" in user.refusal(of="org/tiny", HF_ENDPOINT=hub.url)
    assert [path for path, _ in hub.sent if path.endswith(".safetensors")] == []


@pytest.mark.parametrize("named", ["tiny/tiny.gguf", pytest.param("tiny", marks=slow)])
def test_a_gguf_file_is_unpacked_and_built(gguf_user: User, named: str) -> None:
    built = gguf_user.export(of=named, to="tiny-gguf-cpu")
    assert "unpacking tiny.gguf\nReading GGUF file\nReading weights into 16 bits\n" in built.said
    assert "'fp32'" in built.log
    assert "'accuracy_level=4'" in built.log
    assert built.read("tokenizer.json")["of"] == "the GGUF file"
    assert built.note["source"] == str(gguf_user.source / "tiny.gguf")
    assert gguf_user.built() == ["tiny-gguf-cpu"]


@slow
def test_a_gguf_file_in_fp32_is_not_rounded_to_16_bits(gguf_user: User) -> None:
    done = gguf_user.run("tiny/tiny.gguf", "--precision", "fp32")
    assert (done.returncode, "Reading weights into 32 bits\n" in done.stdout) == (0, True), done.stderr


@slow
def test_a_tokenizer_next_to_a_gguf_file_is_taken(gguf_user: User) -> None:
    gguf_user.write("tiny.gguf", gguf(tokenizer__ggml__pre="unknown-rule"))
    unknown = "the rule by which its tokenizer splits text is not known here (unknown-rule)"
    assert f"tiny.gguf cannot be built: {unknown}" in gguf_user.refusal(of="tiny/tiny.gguf")
    gguf_user.write("tokenizer.json", {"of": "the original"})
    built = gguf_user.export(of="tiny/tiny.gguf", to="tiny-gguf-cpu")
    assert built.read("tokenizer.json") == {"of": "the original"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gguf(general__architecture="falcon"), "tiny.gguf cannot be built: its architecture is falcon"),
        (gguf(general__type="adapter"), "of the type adapter"),
        (gguf(split__count=2), "one of several parts"),
        (gguf(llama__rope__scaling__type="yarn"), "its rope is scaled (yarn)"),
        (b"GGUF?", "it is damaged, or no GGUF file"),
    ],
    ids=["architecture", "type", "parts", "rope", "damaged"],
)
def test_a_gguf_file_that_would_become_another_model_is_refused(gguf_user: User, content: bytes, reason: str) -> None:
    gguf_user.write("tiny.gguf", content)
    assert reason in gguf_user.refusal(of="tiny/tiny.gguf")


def test_missing_gguf_libraries_are_reported(user: User) -> None:
    user.write("tiny.gguf", gguf())
    assert "transformers.integrations.gguf" in user.refusal(of="tiny/tiny.gguf")


def test_one_of_several_gguf_files_must_be_named(gguf_user: User) -> None:
    gguf_user.write("tiny-Q8_0.gguf", gguf())
    assert "has several GGUF files; name one of them:" in gguf_user.refusal()


@slow
def test_a_gguf_file_of_a_repository_is_chosen_by_include(gguf_user: User) -> None:
    files = {"tiny-Q4_0.gguf": gguf(), "tiny-Q8_0.gguf": gguf(), "mmproj-F16.gguf": gguf(), "config.json": b"{}"}
    with run_hub() as hub:
        hub.repositories["org/tiny-GGUF"] = HubRepository(files)
        error = gguf_user.refusal(of="org/tiny-GGUF", status=1, HF_ENDPOINT=hub.url)
        assert '--include "tiny-Q4_0.gguf"' in error
        assert "mmproj" not in error
        options = ["--include", "*Q8_0*", "--precision", "int8"]
        built = gguf_user.export(*options, of="org/tiny-GGUF", to="tiny-Q8_0-int8-cpu", HF_ENDPOINT=hub.url)
        commit = hub.repositories["org/tiny-GGUF"].commit
    assert gguf_user.built() == ["tiny-Q8_0-int8-cpu"]
    expected = {"source": "org/tiny-GGUF", "revision": commit, "folder": "tiny-Q8_0.gguf"}
    assert expected.items() <= built.note.items()
