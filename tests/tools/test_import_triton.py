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


def accelerator(name: str, kind: str = "gpu", **parameters: str) -> str:
    inner = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    accelerators = f'{kind}_execution_accelerator : [ {{ name : "{name}" {inner} }} ]'
    return f"optimization {{ execution_accelerators {{ {accelerators} }} }}"


@pytest.mark.parametrize(
    ("text", "session"),
    [
        (parameter("intra_op_thread_count", "3"), {"intra_op_num_threads": 3}),
        (parameter("inter_op_thread_count", "2"), {"inter_op_num_threads": 2}),
        (parameter("execution_mode", "1"), {"execution_mode": "parallel"}),
        (parameter("enable_mem_arena", "0"), {"enable_cpu_mem_arena": 0}),
        (parameter("enable_mem_pattern", "true"), {"enable_mem_pattern": 1}),
        (
            parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
            {"memory.enable_memory_arena_shrinkage": "cpu:0"},
        ),
        (
            parameter("session.use_device_allocator_for_initializers", "1"),
            {"session.use_device_allocator_for_initializers": 1},
        ),
        ("optimization { graph : { level : -1 }}", {"graph_optimization_level": "basic"}),
        ("optimization { graph { level : 1 }}", {"graph_optimization_level": "extended"}),
        ("optimization { graph { level : 2 }}", {"graph_optimization_level": "disabled"}),
        ("optimization { graph { level : 3 }}", {"graph_optimization_level": "all"}),
        ('model_operations { op_library_filename: ["a.so"] }', {"custom_op_libraries": ["a.so"]}),
    ],
)
def test_an_option_of_the_session(text: str, session: dict[str, Any]) -> None:
    assert toml(text) == {"session": session}


@pytest.mark.parametrize("name", ["intra_op_thread_count", "inter_op_thread_count", "execution_mode"])
def test_default_values_are_left_out(name: str) -> None:
    assert toml(parameter(name, "0")) == {}


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
    assert toml(accelerator("tensorrt", **{given: value})) == {
        "scheduler": "batched",
        "kv_cache_bytes": 2147483648,
        "device": "cuda",
        "providers": ["tensorrt", "cuda", "cpu"],
        "provider": {"tensorrt": {name: expected}},
    }


def test_options_of_cuda() -> None:
    found = toml(accelerator("cuda", cudnn_conv_use_max_workspace="0", use_ep_level_unified_stream="1"))
    assert found["provider"] == {"cuda": {"cudnn_conv_use_max_workspace": 0, "use_ep_level_unified_stream": 1}}
    assert found["providers"] == ["cuda", "cpu"]


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


def test_openvino_is_on_the_cpu_and_comes_from_a_package() -> None:
    assert toml(accelerator("openvino", "cpu")) == {
        "device": "cpu",
        "providers": ["openvino", "cpu"],
        "provider": {"openvino": {"package": "onnxruntime_ep_openvino"}},
    }
    translation = translate(read_pbtxt(accelerator("openvino", "cpu"), "c"))
    assert translation.notes == ["openvino comes from a package: pip install onnxruntime-ep-openvino"]


def test_each_kind_of_device_has_its_own_accelerators() -> None:
    both = "gpu_execution_accelerator { name: 'tensorrt' } cpu_execution_accelerator { name: 'openvino' }"
    text = f"optimization {{ execution_accelerators {{ {both} }} }}"
    groups = "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]"
    found = toml(f"{text} {groups}")
    assert found["device"] == "cpu,cuda"
    assert found["devices"] == {
        "cpu": {"providers": ["openvino", "cpu"]},
        "cuda": {"providers": ["tensorrt", "cuda", "cpu"]},
    }
    assert toml(text)["providers"] == ["tensorrt", "cuda", "cpu"]


def test_unreachable_option_is_left_out_for_a_reachable_one() -> None:
    cuda = "{ name: 'cuda' parameters { key: 'enable_cuda_graph' value: '1' } }"
    text = (
        f"optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {{ name: 'tensorrt' }}, {cuda} ] }} }}"
    )
    translation = translate(read_pbtxt(text, "c"))
    assert "enable_cuda_graph of cuda is left out: it does not reach the batched session" in translation.notes
    assert "provider" not in tomllib.loads(as_toml(translation))


def test_a_gpu_batches_where_an_option_reaches_nothing_else() -> None:
    gpu = "instance_group { kind: KIND_GPU }"
    assert toml(gpu) == {"device": "cuda"}
    found = toml(gpu + parameter("execution_mode", "1"))
    assert (found["scheduler"], found["kv_cache_bytes"]) == ("batched", 2147483648)


def test_devices_come_from_the_instance_groups() -> None:
    assert toml("instance_group [ { kind: KIND_CPU count: 2 } ]") == {"device": "cpu"}
    assert toml("instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]") == {"device": "cuda:0,cuda:1"}


def test_an_accelerator_of_gpus_is_left_out_on_the_cpu() -> None:
    text = accelerator("tensorrt", precision_mode="FP16") + " instance_group { kind: KIND_CPU }"
    assert toml(text) == {"device": "cpu"}
    assert "tensorrt is left out: all instances are on the CPU" in translate(read_pbtxt(text, "c")).notes


def test_a_batch_size_is_the_models_or_the_backends() -> None:
    assert toml("max_batch_size: 8", "onnxruntime,default-max-batch-size=4") == {"max_batch_size": 8}
    assert toml("max_batch_size: 0", "onnxruntime,default-max-batch-size=4") == {"max_batch_size": 4}


def test_global_pool_overrides_the_models_threads() -> None:
    text = parameter("intra_op_thread_count", "2")
    pool = ("onnxruntime,enable-global-threadpool=1", "onnxruntime,intra_op_thread_count=4")
    assert toml(text, *pool) == {"session": {"global_thread_pool": 1, "intra_op_num_threads": 4}}
    assert toml(text, "onnxruntime,enable-global-threadpool=0") == {"session": {"intra_op_num_threads": 2}}
    assert toml(text, "pytorch,enable-global-threadpool=1") == {"session": {"intra_op_num_threads": 2}}


@pytest.mark.parametrize("text", ["dynamic_batching { }", 'input [ { name: "x" } ]', "ensemble_scheduling { }"])
def test_untranslatable_section_is_named(text: str) -> None:
    assert as_toml(translate(read_pbtxt(text, "c"))).startswith(f"# {text.split()[0]} is left out: ")


def test_an_unknown_parameter_is_named_with_the_nearest_one() -> None:
    notes = translate(read_pbtxt(parameter("intra_op_threads_count", "2"), "c")).notes
    assert notes == ["parameter intra_op_threads_count is left out: it is unknown; did you mean intra_op_thread_count?"]


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


def test_unsupported_parameter_is_left_out_with_the_reason() -> None:
    translation = translate(read_pbtxt(parameter("session.enable_profiling", "p"), "c"))
    (note,) = translation.notes
    assert note.startswith("parameter session.enable_profiling is left out: it cannot be set: ")
    assert "session" not in tomllib.loads(as_toml(translation))


def test_cuda_graphs_of_tensorrt_are_left_out() -> None:
    inner = "name: 'tensorrt' parameters { key: 'trt_cuda_graph_enable' value: '1' }"
    text = f"optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {{ {inner} }} ] }} }}"
    translation = translate(read_pbtxt(text, "c"))
    assert "trt_cuda_graph_enable of tensorrt is left out: it does not reach the batched session" in translation.notes
    assert "provider" not in tomllib.loads(as_toml(translation))
