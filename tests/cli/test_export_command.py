"""`genai-server export` as a user runs it: with a builder that writes the demo model, and with the real one."""

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genai_server.cli.export_command import _agrees
from genai_server.model_files.config_files import read_mask_token
from tests.fake_builder import fake_builder
from tests.local_hub import HubRepository, run_hub
from tests.running_server import ROOT, clean_environment, run_command, run_server

SOURCE = {"config.json": b"{}", "model.safetensors": b"w" * 100, "tokenizer.json": b'{"original": true}'}


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    return fake_builder(tmp_path / "libraries")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, content in SOURCE.items():
        (folder / name).write_bytes(content)
    return folder


def export(
    tmp_path: Path, libraries: Path | None, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    paths = [*([str(libraries)] if libraries else []), str(ROOT / "src")]
    kept = {name: value for name, value in clean_environment().items() if not name.startswith("HF_")}
    settings = {"GENAI_MODELS_DIR": str(tmp_path / "models")}
    given = kept | settings | environment
    return run_command("export", *arguments, environment=given, cwd=tmp_path, python_path=os.pathsep.join(paths))


def test_directory_becomes_a_checked_model_with_fast_settings(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source))
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "models" / "tiny-int4-cpu"
    assert "Reading layer 0\n" in done.stdout
    assert "a line for the log only" not in done.stdout
    assert "genai-server serve tiny-int4-cpu\n" in done.stdout
    log = (directory / "export.log").read_text(encoding="utf-8")
    assert "a line for the log only" in log
    assert "1 1 [" in log
    for option in ("'int4'", "'cpu'", "'prune_lm_head=true'", "'block_size=32'", "'accuracy_level=4'"):
        assert option in log
    # The original, not the builder's output.
    assert json.loads((directory / "tokenizer.json").read_bytes()) == {"original": True}
    assert "block_size=32" in json.loads((directory / ".genai-server.json").read_bytes())["built"]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["tiny-int4-cpu"]


@pytest.mark.slow
def test_sampling_defaults_are_the_sources_or_its_familys(tmp_path: Path, libraries: Path, source: Path) -> None:
    (source / "config.json").write_text(
        '{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}', encoding="utf-8"
    )
    for name, expected in (("derived", 0.6), ("given", 1.0)):
        settings = {"_from_model_config": True} if name == "derived" else {"do_sample": False}
        (source / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
        assert export(tmp_path, libraries, str(source), "--to", str(tmp_path / name)).returncode == 0
        search = json.loads((tmp_path / name / "genai_config.json").read_bytes())["search"]
        assert (search.get("temperature", 1.0), bool(search.get("do_sample"))) == (expected, name == "derived")


@pytest.mark.parametrize("mask_token", [None, 7])
def test_mask_token_of_a_parallel_draft_model_is_kept(
    tmp_path: Path, libraries: Path, source: Path, mask_token: int | None
) -> None:
    described = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    given = {} if mask_token is None else {"pard_token": mask_token}
    (source / "config.json").write_text(json.dumps(described | given), encoding="utf-8")
    done = export(tmp_path, libraries, str(source), "--to", str(tmp_path / "draft"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "draft" / "config.json").exists() == (mask_token is not None)
    assert read_mask_token(tmp_path / "draft", 1920) == mask_token


@pytest.mark.slow
def test_mobius_builds_what_the_other_builder_cannot(tmp_path: Path, libraries: Path, source: Path) -> None:
    described = {"architectures": ["SmolLM3ForCausalLM"], "max_position_embeddings": 4096, "eos_token_id": 2}
    (source / "config.json").write_text(json.dumps(described), encoding="utf-8")
    generation = {"eos_token_id": [2, 3], "do_sample": True, "temperature": 0.6, "top_p": 0.95}
    (source / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    done = export(tmp_path, libraries, str(source), "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    assert "mobius builds it" in done.stdout
    directory = tmp_path / "models" / "tiny-fp32-cpu"
    config = json.loads((directory / "genai_config.json").read_bytes())
    assert config["model"]["type"] == "decoder"
    assert (config["model"]["context_length"], config["model"]["eos_token_id"]) == (4096, [2, 3])
    search = {"max_length": 4096, "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 50}
    assert search.items() <= config["search"].items()
    assert json.loads((directory / ".genai-server.json").read_bytes())["built"] == "fp32 cpu mobius"
    assert json.loads((directory / "tokenizer.json").read_bytes()) == {"original": True}
    assert "mobius is called with" in (directory / "export.log").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_small_model_gets_8_bits(tmp_path: Path, libraries: Path, source: Path) -> None:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512, "num_attention_heads": 4}
    (source / "config.json").write_text(
        json.dumps(small | {"intermediate_size": 128, "architectures": ["LlamaForCausalLM"]}), encoding="utf-8"
    )
    done = export(tmp_path, libraries, str(source))
    assert done.returncode == 0, done.stderr
    assert "8 bits, because models below about 1 billion weights" in done.stdout
    assert "k_quant_mixed" not in (tmp_path / "models" / "tiny-int8-cpu" / "export.log").read_text(encoding="utf-8")


def test_a_graph_that_cannot_be_loaded_is_no_model(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--extra", "break=1")
    assert done.returncode == 1
    assert "ONNX Runtime cannot load what the builder wrote: " in done.stderr
    assert not (tmp_path / "models" / "tiny-int4-cpu").exists()


@pytest.mark.slow
def test_whisper_is_built_without_options(tmp_path: Path, libraries: Path, source: Path) -> None:
    config = {"architectures": ["WhisperForConditionalGeneration"]}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (source / "tokenizer.json").write_text('{"added_tokens": [{"content": "<|0.00|>"}]}', encoding="utf-8")
    done = export(tmp_path, libraries, str(source), "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "models" / "tiny-fp32-cpu" / "export.log").read_text(encoding="utf-8")
    assert "'fp32'" in log
    assert "--extra_options" not in log


def test_whisper_without_tokens_for_times_is_refused(tmp_path: Path, libraries: Path, source: Path) -> None:
    config = {"architectures": ["WhisperForConditionalGeneration"]}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (source / "tokenizer.json").write_text('{"added_tokens": [{"content": "<|notimestamps|>"}]}', encoding="utf-8")
    done = export(tmp_path, libraries, str(source))
    assert done.returncode == 2
    assert "lacks <|0.00|> and the other tokens for times" in done.stderr
    assert "building" not in done.stdout


@pytest.mark.slow
def test_model_without_a_chat_template_is_kept_and_reported(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--extra", "lose=chat_template.jinja")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "models" / "tiny-int4-cpu" / "model.onnx").is_file()
    assert "it has no chat template: it takes raw prompts (/v1/completions)" in done.stdout
    assert "genai-server chat" not in done.stdout


@pytest.mark.slow
def test_the_users_options_come_before_ours(tmp_path: Path, libraries: Path, source: Path) -> None:
    options = ["--extra", "block_size=64", "filename=model.onnx", "--to", str(tmp_path / "out")]
    assert export(tmp_path, libraries, str(source), *options).returncode == 0
    log = (tmp_path / "out" / "export.log").read_text(encoding="utf-8")
    assert "'block_size=64'" in log
    assert "'block_size=32'" not in log
    assert "k_quant_mixed" not in log


@pytest.mark.slow
def test_another_device_has_the_builders_own_blocks(tmp_path: Path, libraries: Path, source: Path) -> None:
    assert export(tmp_path, libraries, str(source), "--device", "directml").returncode == 0
    log = (tmp_path / "models" / "tiny-int4-directml" / "export.log").read_text(encoding="utf-8")
    assert "'dml'" in log
    assert "block_size" not in log


def test_failed_builder_shows_its_last_lines_and_leaves_a_log(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--extra", "fail=1")
    assert done.returncode == 1
    assert done.stderr.startswith("genai-server: the model builder failed (status 1); its log is ")
    assert done.stderr.endswith("out of something\n")
    (log,) = (tmp_path / "models").iterdir()
    assert str(log) in done.stderr
    assert "a line for the log only" in log.read_text(encoding="utf-8")


def test_built_model_without_a_file_is_discarded(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--extra", "lose=model.onnx.data")
    assert done.returncode == 1
    assert "the builder's output is not a complete model" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_a_repository_is_fetched_built_and_its_original_removed(tmp_path: Path, libraries: Path) -> None:
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository(SOURCE | {"pytorch_model.bin": b"x"})
        done = export(tmp_path, libraries, "org/tiny", HF_ENDPOINT=hub.url)
        commit = hub.repositories["org/tiny"].commit
    assert done.returncode == 0, done.stderr
    assert "pytorch_model.bin" not in [path for path, _ in hub.sent]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-int4-cpu"]
    note = json.loads((tmp_path / "models" / "tiny-int4-cpu" / ".genai-server.json").read_bytes())
    assert (note["source"], note["revision"]) == ("org/tiny", commit)


def test_missing_pytorch_is_reported_before_any_download(tmp_path: Path, libraries: Path) -> None:
    (libraries / "torch.py").unlink()
    (libraries / "transformers.py").unlink()
    shutil.rmtree(libraries / "onnxruntime_genai" / "models")
    done = export(tmp_path, libraries, "org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert "onnxruntime_genai.models.builder: " in done.stderr
    assert "[export]'" in done.stderr


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


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    path = tmp_path / "bare" / "python"
    path.parent.mkdir()
    words = {"log": path.parent / "log", "folder": path.parent, "python": sys.executable}
    path.write_text(PYTHON.format(**{name: shlex.quote(str(value)) for name, value in words.items()}), encoding="utf-8")
    path.chmod(0o755)
    return path


def test_missing_packages_are_installed_on_request(
    tmp_path: Path, libraries: Path, source: Path, bare_python: Path
) -> None:
    arguments = [str(source), "--python", str(bare_python)]
    done = export(tmp_path, libraries, *arguments)
    assert done.returncode == 2
    assert "lacks torch, " in done.stderr
    log = bare_python.parent / "log"
    assert not log.exists()
    (bare_python.parent / "broken").touch()
    done = export(tmp_path, libraries, *arguments, "--yes")
    assert done.returncode == 2
    assert "failed (status 7), as the lines above say" in done.stderr
    (bare_python.parent / "broken").unlink()
    log.unlink()
    done = export(tmp_path, libraries, *arguments, "--yes")
    assert done.returncode == 0, done.stderr
    assert log.read_text(encoding="utf-8").startswith("-m pip install ")
    assert "export]" in log.read_text(encoding="utf-8")
    assert (tmp_path / "models" / "tiny-int4-cpu").is_dir()


@pytest.mark.parametrize(
    ("said", "agrees"), [("y\n", True), ("yes\n", True), ("\n", False), ("no\n", False), ("", False)]
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


def test_time_and_memory_are_said_before_weights_are_fetched(tmp_path: Path, libraries: Path) -> None:
    config = {"hidden_size": 1024, "num_hidden_layers": 28, "vocab_size": 151_936, "num_attention_heads": 16}
    more = {"intermediate_size": 3072, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    with run_hub() as hub:
        described = json.dumps(config | more | {"architectures": ["Qwen3ForCausalLM"]}).encode()
        hub.repositories["org/tiny"] = HubRepository(SOURCE | {"config.json": described})
        done = export(tmp_path, libraries, "org/tiny", HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (cost,) = [
        place for place, line in enumerate(lines) if line.startswith("0.6 billion weights: building takes about ")
    ]
    (fetching,) = [place for place, line in enumerate(lines) if line.startswith("fetching ")]
    assert cost < fetching
    assert "GiB of memory" in lines[cost]
    assert f"from {hub.url}" in lines[fetching]


@pytest.mark.slow
def test_built_model_is_served(tmp_path: Path, libraries: Path, source: Path) -> None:
    paths = os.pathsep.join([str(libraries), str(ROOT / "src")])
    settings = {"GENAI_MODELS_DIR": str(tmp_path / "models"), "PYTHONPATH": paths}
    program = [sys.executable, "-m", "genai_server", "export", str(source), "--serve", "--device", "scripted"]
    with run_server(tmp_path, settings=settings, program=program) as server:
        assert server.client.get("/v1/models").json()["data"][0]["id"] == "tiny-int4-cpu"


def test_existing_directory_is_not_overwritten(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--to", str(source))
    assert done.returncode == 2
    assert "already exists" in done.stderr


def test_an_option_without_a_value_is_refused(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--extra", "block_size")
    assert done.returncode == 2
    assert "an option is NAME=VALUE" in done.stderr


def _describe(source: Path, **config: object) -> None:
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.slow
def test_a_head_for_drafts_is_built_so_that_cpus_can_load_it(tmp_path: Path, libraries: Path, source: Path) -> None:
    _describe(source, architectures=["Qwen3_5ForConditionalGeneration"], text_config={"mtp_num_hidden_layers": 1})
    for device, shares in (("cpu", False), ("cuda", True)):
        assert export(tmp_path, libraries, str(source), "--device", device, "--extra", "share=1").returncode == 0
        target = tmp_path / "models" / f"tiny-int4-{device}"
        log = (target / "export.log").read_text(encoding="utf-8")
        assert "'prune_lm_head=false'" in log
        assert "exclude_mtp" not in log
        decoder = json.loads((target / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
        assert ("shared_initializers" in decoder) is shares


def test_a_model_that_cannot_be_built_is_refused_at_once(tmp_path: Path, libraries: Path, source: Path) -> None:
    _describe(source, architectures=["GraniteMoeHybridForCausalLM"], num_local_experts=8)
    done = export(tmp_path, libraries, str(source))
    assert done.returncode == 2
    assert done.stderr == (
        "genai-server: GraniteMoeHybridForCausalLM cannot be built for cpu in int4: the model builder leaves out its "
        "experts, so that it would answer wrongly\n"
    )
    assert not (tmp_path / "models" / "tiny-int4-cpu").exists()
    assert export(tmp_path, libraries, str(source), "--unchecked").returncode == 0


@pytest.mark.slow
def test_the_type_is_corrected_and_text_only_is_said(tmp_path: Path, libraries: Path, source: Path) -> None:
    done = export(tmp_path, libraries, str(source), "--extra", "type=qwen3vl", "--to", str(tmp_path / "vision"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "vision" / "genai_config.json").read_bytes())["model"]["type"] == "qwen3_vl"
    assert "text only" not in done.stdout
    done = export(tmp_path, libraries, str(source), "--extra", "type=qwen3_vl_text", "--to", str(tmp_path / "text"))
    assert "it is served for text only" in done.stdout


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}


@pytest.mark.slow
def test_quantized_weights_decide_precision_and_blocks(tmp_path: Path, libraries: Path, source: Path) -> None:
    _describe(source, architectures=["Qwen2ForCausalLM"], quantization_config=AWQ)
    done = export(tmp_path, libraries, str(source))
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "models" / "tiny-int4-cpu" / "export.log").read_text(encoding="utf-8")
    assert "'int4'" in log
    assert "'block_size=64'" in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--precision", "int8"],
            "the weights are quantized already (awq with 4 bits in groups of 64)",
        ),
        (["--extra", "block_size=128"], "--extra block_size=128: the weights are quantized already"),
    ],
)
def test_an_option_that_contradicts_quantized_weights_is_refused(
    tmp_path: Path, libraries: Path, source: Path, options: list[str], message: str
) -> None:
    _describe(source, architectures=["Qwen2ForCausalLM"], quantization_config=AWQ)
    done = export(tmp_path, libraries, str(source), *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_weights_read_wrongly_are_refused_before_the_download(tmp_path: Path, libraries: Path) -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "quantization_config": AWQ | {"version": "gemv"}}
    with run_hub() as hub:
        hub.repositories["org/tiny"] = HubRepository(SOURCE | {"config.json": json.dumps(config).encode()})
        done = export(tmp_path, libraries, "org/tiny", HF_ENDPOINT=hub.url)
    assert done.returncode == 2
    assert "reads the version gemm only" in done.stderr
    assert [path for path, _ in hub.sent if path.endswith(".safetensors")] == []


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "<end>"],
    "tokenizer.ggml.token_type": [1, 3],
    "tokenizer.ggml.eos_token_id": 1,
}


def gguf(**changes: object) -> bytes:
    return json.dumps(GGUF | {name.replace("__", "."): value for name, value in changes.items()}).encode()


@pytest.fixture
def gguf_libraries(tmp_path: Path) -> Path:
    return fake_builder(tmp_path / "libraries", with_gguf=True)


@pytest.mark.parametrize("named", ["tiny-Q4_0.gguf", pytest.param(".", marks=pytest.mark.slow)])
def test_a_gguf_file_is_unpacked_and_built(tmp_path: Path, gguf_libraries: Path, named: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "tiny-Q4_0.gguf").write_bytes(gguf())
    done = export(tmp_path, gguf_libraries, str(folder / named))
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "models" / "tiny-Q4_0-gguf-cpu"
    assert "unpacking tiny-Q4_0.gguf\nReading GGUF file\nReading weights into 16 bits\n" in done.stdout
    log = (directory / "export.log").read_text(encoding="utf-8")
    assert "'fp32'" in log
    assert "'accuracy_level=4'" in log
    assert json.loads((directory / "tokenizer.json").read_bytes())["of"] == "the GGUF file"
    note = json.loads((directory / ".genai-server.json").read_bytes())
    assert note["source"] == str(folder / "tiny-Q4_0.gguf")
    assert [path.name for path in (tmp_path / "models").iterdir()] == [directory.name]


@pytest.mark.slow
def test_a_gguf_file_in_fp32_is_not_rounded_to_16_bits(tmp_path: Path, gguf_libraries: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf())
    done = export(tmp_path, gguf_libraries, "tiny.gguf", "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    assert "Reading weights into 32 bits\n" in done.stdout


@pytest.mark.slow
def test_a_tokenizer_next_to_a_gguf_file_is_taken(tmp_path: Path, gguf_libraries: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf(tokenizer__ggml__pre="unknown-rule"))
    done = export(tmp_path, gguf_libraries, "tiny.gguf")
    assert done.returncode == 2
    assert (
        "tiny.gguf cannot be built: the rule by which its tokenizer splits text is not known here (unknown-rule)"
        in done.stderr
    )
    (tmp_path / "tokenizer.json").write_text('{"of": "the original"}', encoding="utf-8")
    assert export(tmp_path, gguf_libraries, "tiny.gguf").returncode == 0
    tokenizer = tmp_path / "models" / "tiny-gguf-cpu" / "tokenizer.json"
    assert json.loads(tokenizer.read_bytes()) == {"of": "the original"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general__architecture": "falcon"}, "its architecture is falcon"),
        ({"general__type": "adapter"}, "of the type adapter"),
        ({"split__count": 2}, "one of several parts"),
        ({"llama__rope__scaling__type": "yarn"}, "its rope is scaled (yarn)"),
    ],
)
def test_a_gguf_file_that_would_become_another_model_is_refused(
    tmp_path: Path, gguf_libraries: Path, changes: dict[str, object], reason: str
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf(**changes))
    done = export(tmp_path, gguf_libraries, "tiny.gguf")
    assert done.returncode == 2
    assert done.stderr.startswith("genai-server: tiny.gguf cannot be built: ")
    assert reason in done.stderr
    assert not (tmp_path / "models" / "tiny-gguf-cpu").exists()


def test_a_damaged_gguf_file_is_refused(tmp_path: Path, gguf_libraries: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF?")
    done = export(tmp_path, gguf_libraries, "tiny.gguf")
    assert (done.returncode, "it is damaged, or no GGUF file" in done.stderr) == (2, True)


def test_missing_gguf_libraries_are_reported(tmp_path: Path, libraries: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(gguf())
    done = export(tmp_path, libraries, "tiny.gguf")
    assert done.returncode == 2
    assert "transformers.integrations.gguf" in done.stderr


def test_one_of_several_gguf_files_must_be_named(tmp_path: Path, gguf_libraries: Path) -> None:
    for name in ("a-Q4_0.gguf", "a-Q8_0.gguf"):
        (tmp_path / name).write_bytes(gguf())
    done = export(tmp_path, gguf_libraries, str(tmp_path))
    assert done.returncode == 2
    assert "has several GGUF files; name one of them:" in done.stderr


@pytest.mark.slow
def test_a_gguf_file_of_a_repository_is_chosen_by_include(tmp_path: Path, gguf_libraries: Path) -> None:
    files = {"tiny-Q4_0.gguf": gguf(), "tiny-Q8_0.gguf": gguf(), "mmproj-F16.gguf": gguf(), "config.json": b"{}"}
    with run_hub() as hub:
        hub.repositories["org/tiny-GGUF"] = HubRepository(files)
        done = export(tmp_path, gguf_libraries, "org/tiny-GGUF", HF_ENDPOINT=hub.url)
        assert done.returncode == 1
        assert '--include "tiny-Q4_0.gguf"' in done.stderr
        assert "mmproj" not in done.stderr
        options = ["--include", "*Q8_0*", "--precision", "int8"]
        done = export(tmp_path, gguf_libraries, "org/tiny-GGUF", *options, HF_ENDPOINT=hub.url)
        commit = hub.repositories["org/tiny-GGUF"].commit
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-Q8_0-int8-cpu"]
    note = json.loads((tmp_path / "models" / "tiny-Q8_0-int8-cpu" / ".genai-server.json").read_bytes())
    assert (note["source"], note["revision"], note["folder"]) == ("org/tiny-GGUF", commit, "tiny-Q8_0.gguf")
