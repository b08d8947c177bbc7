"""What docs/from-triton.md says about Triton's options and examples."""

from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.cli.serve.preflight import check_server
from genai_server.config.sources import device_options, load_settings
from tests.running_server import DEMO

# Quoted, the first without a surplus brace.
TENSORRT = """
optimization { execution_accelerators {
  gpu_execution_accelerator : [ {
    name : "tensorrt"
    parameters { key: "precision_mode" value: "FP16" }
    parameters { key: "max_workspace_size_bytes" value: "1073741824" }
    parameters { key: "trt_engine_cache_enable" value: "1" }}
  ]
}}
"""
# As it is there: a surplus brace makes it invalid protobuf text.
LITERAL_TENSORRT = TENSORRT.replace('"1073741824" }', '"1073741824" }}')
ALL_OF_TENSORRT = """
max_workspace_size_bytes 4294967296 trt_max_partition_iterations 1000 trt_min_subgraph_size 1 precision_mode INT8
int8_calibration_table_name table int8_use_native_calibration_table true trt_dla_enable 0 trt_dla_core 0
trt_engine_cache_enable true trt_engine_cache_path /tmp/cache trt_engine_cache_prefix model trt_dump_subgraphs 0
trt_force_sequential_engine_build 0 trt_context_memory_sharing_enable 1 trt_layer_norm_fp32_fallback 1
trt_timing_cache_enable 1 trt_timing_cache_path /tmp/cache trt_force_timing_cache 0 trt_detailed_build_log 0
trt_build_heuristics_enable 0 trt_sparsity_enable 0 trt_builder_optimization_level 3 trt_auxiliary_streams -1
trt_tactic_sources -CUDNN,+CUBLAS trt_extra_plugin_lib_paths /tmp/plugin.so trt_profile_min_shapes a:1x1
trt_profile_max_shapes a:8x8 trt_profile_opt_shapes a:4x4 trt_cuda_graph_enable 0 trt_dump_ep_context_model 0
trt_ep_context_file_path /tmp/context trt_ep_context_embed_mode 1
"""
CUDA = """
optimization { execution_accelerators {
  gpu_execution_accelerator : [ {
    name : "cuda"
    parameters { key: "cudnn_conv_use_max_workspace" value: "0" }
    parameters { key: "use_ep_level_unified_stream" value: "1" }}
  ]
}}
"""
DEPRECATED = """
parameters { key: "cudnn_conv_algo_search" value: { string_value: "0" } }
parameters { key: "gpu_mem_limit" value: { string_value: "4294967200" } }
"""
OPENVINO = """
optimization { execution_accelerators {
  cpu_execution_accelerator : [ {
    name : "openvino"
  } ]
}}
"""
OTHERS = """
optimization {
  graph : {
    level : 1
}}

parameters { key: "intra_op_thread_count" value: { string_value: "0" } }
parameters { key: "execution_mode" value: { string_value: "0" } }
parameters { key: "inter_op_thread_count" value: { string_value: "0" } }
"""


def every_parameter(text: str) -> str:
    words = text.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    parameters = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in pairs)
    inner = f'gpu_execution_accelerator : [ {{ name : "tensorrt" {parameters} }} ]'
    return f"optimization {{ execution_accelerators {{ {inner} }} }}"


def test_the_surplus_brace_of_tritons_own_example_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.pbtxt"
    config.write_text(LITERAL_TENSORRT, encoding="utf-8")
    assert main(["import-triton", str(config)]) == 2
    said = capsys.readouterr().err
    assert f'{config}:7:5 : \'    parameters {{ key: "trt_engine_cache_enable"' in said
    assert said.endswith("as in Triton's example for TensorRT, remove the '}' that closes it\n")


@pytest.mark.parametrize("groups", ["", "instance_group { kind: KIND_GPU }", "instance_group { kind: KIND_CPU }"])
@pytest.mark.parametrize(
    "example",
    [TENSORRT, every_parameter(ALL_OF_TENSORRT), CUDA, DEPRECATED, OPENVINO, OTHERS, DEPRECATED + TENSORRT + OTHERS],
    ids=["tensorrt", "all of tensorrt", "cuda", "deprecated", "openvino", "others", "several"],
)
def test_serve_accepts_translated_examples_of_tritons_documents(
    example: str, groups: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime_ep_openvino.py").touch()  # serve requires that it is installed
    monkeypatch.syspath_prepend(tmp_path)
    config, written = tmp_path / "config.pbtxt", tmp_path / "genai-server.toml"
    config.write_text(example + groups, encoding="utf-8")
    pool = [f"--backend-config=onnxruntime,{key}" for key in ("enable-global-threadpool=0", "default-max-batch-size=4")]
    assert main(["import-triton", str(config), *pool]) == 0
    written.write_text(capsys.readouterr().out, encoding="utf-8")
    settings = load_settings({"config": str(written), "model_dir": str(DEMO)}, environ={}, dotenv=None)
    check_server(settings)
    assert [options.warnings for options in device_options(settings).values()] == [[]]
