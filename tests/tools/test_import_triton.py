"""Protobuf's text format without a schema."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from genai_server.cli import main
from genai_server.config.sources import device_options, load_settings
from genai_server.errors import ConfigurationError
from genai_server.tools.import_triton import as_toml, read_pbtxt, translate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name: "m"', {"name": ["m"]}),
        ("level : -1", {"level": ["-1"]}),
        ("kind: KIND_GPU # why", {"kind": ["KIND_GPU"]}),
        ("a { b: 1 }", {"a": [{"b": ["1"]}]}),
        ("a: < b: 1 >", {"a": [{"b": ["1"]}]}),
        ("a: [ 1, 2 ]", {"a": ["1", "2"]}),
        ("a: []", {"a": []}),
        ("a: [ { b: 1 }, { b: 2 } ]", {"a": [{"b": ["1"]}, {"b": ["2"]}]}),
        ("a: 1; a: 2, b: true", {"a": ["1", "2"], "b": ["true"]}),
        (r'a: "x\"\n" "y"', {"a": ['x"\ny']}),
        ("", {}),
    ],
)
def test_fields_are_read_whatever_they_are(text: str, expected: object) -> None:
    assert read_pbtxt(text, "c") == expected


@pytest.mark.parametrize(
    "text", ["a { b: 1 }}", "a {", "a: [1", "a 1", "a:", "1: a", 'a: "x', "a: }", "a: [ { b: 1 }", "a: [1 2]"]
)
def test_malformed_text_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^config.pbtxt:\d+:\d+ "):
        read_pbtxt(text, "config.pbtxt")


def toml(text: str, *backend_config: str) -> dict[str, Any]:
    return tomllib.loads(as_toml(translate(read_pbtxt(text, "config.pbtxt"), backend_config)))


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'


def accelerators(*lists: str) -> str:
    return f"optimization {{ execution_accelerators {{ {' '.join(lists)} }} }}"


def accelerator(name: str, kind: str = "gpu", **parameters: str) -> str:
    inner = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    return accelerators(f'{kind}_execution_accelerator : [ {{ name : "{name}" {inner} }} ]')


BATCHED = {"scheduler": "batched", "kv_cache_bytes": 2147483648, "device": "cuda"}


def notes(text: str) -> list[str]:
    return translate(read_pbtxt(text, "c")).notes


@pytest.mark.parametrize(
    ("text", "session"),
    [
        (parameter("intra_op_thread_count", "3"), {"intra_op_num_threads": 3}),
        (parameter("inter_op_thread_count", "2"), {"inter_op_num_threads": 2}),
        (parameter("execution_mode", "1"), {"execution_mode": "parallel"}),
        (parameter("enable_mem_arena", "0"), {"enable_cpu_mem_arena": 0}),
        (parameter("enable_mem_pattern", "true"), {"enable_mem_pattern": 1}),
        (parameter("memory.enable_memory_arena_shrinkage", "cpu:0"), {"memory.enable_memory_arena_shrinkage": "cpu:0"}),
        ("optimization { graph : { level : -1 }}", {"graph_optimization_level": "basic"}),
        ("optimization { graph { level : 1 }}", {"graph_optimization_level": "extended"}),
        ("optimization { graph { level : 2 }}", {"graph_optimization_level": "disabled"}),
        ("optimization { graph { level : 3 }}", {"graph_optimization_level": "all"}),
        ('model_operations { op_library_filename: ["a.so"] }', {"custom_op_libraries": ["a.so"]}),
        # Default values are left out.
        (parameter("intra_op_thread_count", "0"), None),
        (parameter("inter_op_thread_count", "0"), None),
        (parameter("execution_mode", "0"), None),
    ],
)
def test_an_option_of_the_session(text: str, session: dict[str, Any] | None) -> None:
    assert toml(text) == ({} if session is None else {"session": session})


@pytest.mark.parametrize(
    ("given", "value", "name", "expected"),
    [
        ("precision_mode", "FP16", "trt_fp16_enable", 1),
        ("precision_mode", "BF16", "trt_bf16_enable", 1),
        ("precision_mode", "INT8", "trt_int8_enable", 1),
        ("max_workspace_size_bytes", "1073741824", "trt_max_workspace_size", 1073741824),
        ("int8_calibration_table_name", "table", "trt_int8_calibration_table_name", "table"),
        ("int8_use_native_calibration_table", "true", "trt_int8_use_native_calibration_table", 1),
        ("trt_engine_cache_enable", "1", "trt_engine_cache_enable", 1),
        ("trt_engine_cache_path", "/cache", "trt_engine_cache_path", "/cache"),
        ("trt_profile_min_shapes", "a:1x1,b:1x8", "trt_profile_min_shapes", "a:1x1,b:1x8"),
        ("trt_tactic_sources", "-CUDNN,+CUBLAS", "trt_tactic_sources", "-CUDNN,+CUBLAS"),
        ("trt_auxiliary_streams", "-1", "trt_auxiliary_streams", -1),
    ],
)
def test_an_option_of_tensorrt_and_cuda_behind_it(given: str, value: str, name: str, expected: Any) -> None:
    providers = {"providers": ["tensorrt", "cuda", "cpu"], "provider": {"tensorrt": {name: expected}}}
    assert toml(accelerator("tensorrt", **{given: value})) == BATCHED | providers


CPU, GPU = "instance_group [ { kind: KIND_CPU } ]", "instance_group { kind: KIND_GPU }"
THREADS = parameter("intra_op_thread_count", "2")
CUDA_OPTIONS = {"cudnn_conv_use_max_workspace": 0, "use_ep_level_unified_stream": 1}
OPENVINO = {"providers": ["openvino", "cpu"], "provider": {"openvino": {"package": "onnxruntime_ep_openvino"}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            accelerator("cuda", cudnn_conv_use_max_workspace="0", use_ep_level_unified_stream="1"),
            {"device": "cuda", "providers": ["cuda", "cpu"], "provider": {"cuda": CUDA_OPTIONS}},
        ),
        (accelerator("openvino", "cpu"), {"device": "cpu", **OPENVINO}),
        (accelerator("tensorrt", precision_mode="FP16") + CPU, {"device": "cpu"}),
        (GPU, {"device": "cuda"}),
        # A GPU batches where an option reaches nothing else.
        (GPU + parameter("execution_mode", "1"), {**BATCHED, "session": {"execution_mode": "parallel"}}),
        ("instance_group [ { kind: KIND_CPU count: 2 } ]", {"device": "cpu"}),
        ("instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]", {"device": "cuda:0,cuda:1"}),
    ],
)
def test_devices_and_providers_come_from_accelerators_and_groups(text: str, expected: dict[str, Any]) -> None:
    assert toml(text) == expected


@pytest.mark.parametrize(
    ("text", "backend_config", "expected"),
    [
        ("max_batch_size: 8", ["onnxruntime,default-max-batch-size=4"], {"max_batch_size": 8}),
        ("max_batch_size: 0", ["onnxruntime,default-max-batch-size=4"], {"max_batch_size": 4}),
        (
            THREADS,
            ["onnxruntime,enable-global-threadpool=1", "onnxruntime,intra_op_thread_count=4"],
            {"session": {"global_thread_pool": 1, "intra_op_num_threads": 4}},
        ),
        (THREADS, ["onnxruntime,enable-global-threadpool=0"], {"session": {"intra_op_num_threads": 2}}),
        (THREADS, ["pytorch,enable-global-threadpool=1"], {"session": {"intra_op_num_threads": 2}}),
    ],
)
def test_the_backends_configuration_has_batch_size_and_pool(
    text: str, backend_config: list[str], expected: dict[str, Any]
) -> None:
    assert toml(text, *backend_config) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cudnn_conv_algo_search", "0", "EXHAUSTIVE"),
        ("cudnn_conv_algo_search", "1", "HEURISTIC"),
        ("cudnn_conv_algo_search", "2", "DEFAULT"),
        ("gpu_mem_limit", "4294967200", 4294967200),
        ("arena_extend_strategy", "0", "kNextPowerOfTwo"),
        ("arena_extend_strategy", "1", "kSameAsRequested"),
        ("do_copy_in_default_stream", "1", 1),
    ],
)
def test_a_deprecated_option_of_cuda_comes_with_a_note(key: str, value: str, expected: Any) -> None:
    translation = translate(read_pbtxt(parameter(key, value), "c"))
    assert tomllib.loads(as_toml(translation))["provider"] == {"cuda": {key: expected}}
    assert "deprecated" in translation.notes[0]
    assert as_toml(translation).startswith("# ")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (accelerator("openvino", "cpu"), "openvino comes from a package: pip install onnxruntime-ep-openvino"),
        (accelerator("tensorrt") + CPU, "tensorrt is left out: all instances are on the CPU"),
        (
            accelerator("tensorrt", trt_cuda_graph_enable="1"),
            "trt_cuda_graph_enable of tensorrt is left out: it does not reach the batched session",
        ),
        (
            parameter("intra_op_threads_count", "2"),
            "parameter intra_op_threads_count is left out: it is unknown; did you mean intra_op_thread_count?",
        ),
        (
            parameter("session.enable_profiling", "p"),
            "parameter session.enable_profiling is left out: it cannot be set: ",
        ),
        ("dynamic_batching { }", "dynamic_batching is left out: "),
        ('input [ { name: "x" } ]', "input is left out: "),
        ("ensemble_scheduling { }", "ensemble_scheduling is left out: "),
    ],
)
def test_what_is_left_out_is_noted(text: str, note: str) -> None:
    (found,) = (one for one in notes(text) if one.startswith(note))
    assert f"# {found}" in as_toml(translate(read_pbtxt(text, "c")))
    assert "session" not in toml(text)
    assert "trt_cuda_graph_enable" not in str(toml(text))


def test_each_kind_of_device_has_its_own_accelerators() -> None:
    text = accelerators("gpu_execution_accelerator { name: 'tensorrt' } cpu_execution_accelerator { name: 'openvino' }")
    found = toml(f"{text} instance_group [ {{ kind: KIND_CPU }}, {{ kind: KIND_GPU }} ]")
    assert found["device"] == "cpu,cuda"
    assert found["devices"] == {
        "cpu": {"providers": ["openvino", "cpu"]},
        "cuda": {"providers": ["tensorrt", "cuda", "cpu"]},
    }
    assert toml(text)["providers"] == ["tensorrt", "cuda", "cpu"]


def test_unreachable_option_is_left_out_for_a_reachable_one() -> None:
    cuda = "{ name: 'cuda' parameters { key: 'enable_cuda_graph' value: '1' } }"
    text = accelerators(f"gpu_execution_accelerator [ {{ name: 'tensorrt' }}, {cuda} ]")
    assert "enable_cuda_graph of cuda is left out: it does not reach the batched session" in notes(text)
    assert "provider" not in toml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (accelerator("migraphx"), 'execution accelerator "migraphx": expected one of tensorrt, cuda, openvino'),
        (accelerator("tensorrt", precision_mode="FP8"), 'precision_mode="FP8": expected one of FP32'),
        (accelerator("tensorrt", trt_engine_cache="1"), "did you mean trt_engine_cache_"),
        (parameter("execution_mode", "2"), 'execution_mode="2": expected one of'),
        ("max_batch_size: many", 'max_batch_size="many": expected a whole number'),
    ],
)
def test_value_that_triton_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        toml(text)


def test_the_command_prints_what_the_server_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.pbtxt"
    config.write_text(
        f'name: "chat"\nmax_batch_size: 8\n{parameter("execution_mode", "1")}\n'
        f"{parameter('session.intra_op.allow_spinning', '0')}\n{accelerator('tensorrt', precision_mode='FP16')}",
        encoding="utf-8",
    )
    assert main(["import-triton", str(config), "--backend-config=onnxruntime,enable-global-threadpool=1"]) == 0
    printed = tmp_path / "genai-server.toml"
    printed.write_text(capsys.readouterr().out, encoding="utf-8")
    settings = load_settings({"config": str(printed)}, environ={}, dotenv=None)
    assert (settings.model_name, settings.max_batch_size, settings.device) == ("chat", 8, "cuda")
    options = device_options(settings)["cuda"]
    assert options.session == {"execution_mode": "parallel", "global_thread_pool": "1"}
    assert options.entries == {"session.intra_op.allow_spinning": "0"}
    assert [(given.name, given.options) for given in options.providers] == [
        ("tensorrt", {"trt_fp16_enable": "1"}),
        ("cuda", {}),
    ]


def test_without_completion_the_backends_batch_size_has_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.pbtxt"
    config.write_text('name: "chat"', encoding="utf-8")
    arguments = ["import-triton", str(config), "--backend-config=onnxruntime,default-max-batch-size=8"]
    assert main(arguments) == 0
    assert "max_batch_size = 8" in capsys.readouterr().out
    assert main([*arguments, "--disable-auto-complete-config"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# --disable-auto-complete-config is left out: a model directory describes its model, and config.pbtxt is not "
        "read again",
        "# --backend-config default-max-batch-size is left out: Triton ignores it with --disable-auto-complete-config",
        'model_name = "chat"',
    ]


def test_missing_file_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-triton", str(tmp_path / "none.pbtxt")]) == 2
    assert "cannot be read: no such file" in capsys.readouterr().err
