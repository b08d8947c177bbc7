"""The execution providers that the server knows (`PROVIDERS`), such as CUDA and OpenVINO, each with its options and its
names in ONNX Runtime and in onnxruntime-genai.

onnxruntime-genai's names are those of `NormalizeProviderName` and the table in its session_options.cpp (0.18); it does
not have TensorRT, and takes the options of CUDA's memory arena separately. The names of the options of NVIDIA's
providers are the fields of OrtCUDAProviderOptionsV2 and OrtTensorRTProviderOptionsV2; where Triton uses another name,
it is accepted too. Any other provider may come from a Python package or a library, under the name that the library
gives it.
"""

import difflib
import re
import string
from dataclasses import dataclass

from genai_server.options.table import Kind, Reach, Row, Value, choice, flag, number, shapes, size, text

# How ONNX Runtime names the options of the CUDA provider that comes as a plugin.
CUDA_PLUGIN = "ep.cudapluginexecutionprovider"
CAPTURE_RUNS = "min_num_runs_before_cuda_graph_capture"
CAPTURES_AFTER_WARM_UP = (
    "the built-in provider has a fixed number of runs before it captures a graph, which the server performs before it "
    "is ready; write enable_cuda_graph in [provider.cuda]"
)
FIXED_SHAPES = "a captured graph is replayed with the same shapes, and those of a batch change from pass to pass"
POINTER = "its value is an address inside a program"

SEARCHES = {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"}
STRATEGIES = {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}

CUDA: tuple[Row, ...] = (
    Row("device_id", number()),
    Row("gpu_mem_limit", size()),
    Row("arena_extend_strategy", choice(*STRATEGIES.values(), also=STRATEGIES)),
    Row("cudnn_conv_algo_search", choice(*SEARCHES.values(), also=SEARCHES)),
    Row("do_copy_in_default_stream", flag()),
    Row("cudnn_conv_use_max_workspace", flag()),
    Row("cudnn_conv1d_pad_to_nc1d", flag()),
    Row("enable_cuda_graph", flag(), Reach.GENERATOR, also=(f"{CUDA_PLUGIN}.enable_cuda_graph",), why=FIXED_SHAPES),
    Row(CAPTURE_RUNS, number(), impossible=CAPTURES_AFTER_WARM_UP, also=(f"{CUDA_PLUGIN}.{CAPTURE_RUNS}",)),
    Row("enable_skip_layer_norm_strict_mode", flag()),
    Row("prefer_nhwc", flag()),
    Row("use_ep_level_unified_stream", flag()),
    Row("use_tf32", flag()),
    Row("fuse_conv_bias", flag()),
    Row("sdpa_kernel", number()),
    Row("tunable_op_enable", flag()),
    Row("tunable_op_tuning_enable", flag()),
    Row("tunable_op_max_tuning_duration_ms", number()),
    Row("max_mem", size(), Reach.GENERATOR),
    Row("initial_chunk_size_bytes", number(-1), Reach.GENERATOR),
    Row("max_dead_bytes_per_chunk", number(-1), Reach.GENERATOR),
    Row("initial_growth_chunk_size_bytes", number(-1), Reach.GENERATOR),
    Row("has_user_compute_stream", flag(), impossible=POINTER),
    Row("user_compute_stream", number(), impossible=POINTER),
    Row("gpu_external_alloc", number(), impossible=POINTER),
    Row("gpu_external_free", number(), impossible=POINTER),
    Row("gpu_external_empty_cache", number(), impossible=POINTER),
    Row("default_memory_arena_cfg", number(), impossible=POINTER),
)

# Triton's deprecated form: options among the model's parameters, some with numbers instead of words.
DEPRECATED: dict[str, dict[str, str]] = {
    "cudnn_conv_algo_search": SEARCHES,
    "gpu_mem_limit": {},
    "arena_extend_strategy": STRATEGIES,
    "do_copy_in_default_stream": {},
}


PRECISIONS = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}

TENSORRT: tuple[Row, ...] = (
    Row("device_id", number()),
    Row("precision_mode", choice(*PRECISIONS), means=PRECISIONS),
    Row("trt_fp16_enable", flag()),
    Row("trt_bf16_enable", flag()),
    Row("trt_int8_enable", flag()),
    Row("trt_max_workspace_size", size(), also=("max_workspace_size_bytes",)),
    Row("trt_max_partition_iterations", number()),
    Row("trt_min_subgraph_size", number()),
    Row("trt_int8_calibration_table_name", text(), also=("int8_calibration_table_name",)),
    Row("trt_int8_use_native_calibration_table", flag(), also=("int8_use_native_calibration_table",)),
    Row("trt_dla_enable", flag()),
    Row("trt_dla_core", number()),
    Row("trt_engine_cache_enable", flag()),
    Row("trt_engine_cache_path", text()),
    Row("trt_engine_cache_prefix", text()),
    Row("trt_engine_decryption_enable", flag()),
    Row("trt_engine_decryption_lib_path", text()),
    Row("trt_engine_hw_compatible", flag()),
    Row("trt_weight_stripped_engine_enable", flag()),
    Row("trt_onnx_model_folder_path", text()),
    Row("trt_dump_subgraphs", flag()),
    Row("trt_force_sequential_engine_build", flag()),
    Row("trt_context_memory_sharing_enable", flag()),
    Row("trt_layer_norm_fp32_fallback", flag()),
    Row("trt_timing_cache_enable", flag()),
    Row("trt_timing_cache_path", text()),
    Row("trt_force_timing_cache", flag()),
    Row("trt_detailed_build_log", flag()),
    Row("trt_build_heuristics_enable", flag()),
    Row("trt_sparsity_enable", flag()),
    Row("trt_builder_optimization_level", number(0, 5)),
    Row("trt_auxiliary_streams", number(-1)),
    Row("trt_tactic_sources", text()),
    Row("trt_extra_plugin_lib_paths", text()),
    Row("trt_profile_min_shapes", shapes()),
    Row("trt_profile_max_shapes", shapes()),
    Row("trt_profile_opt_shapes", shapes()),
    Row("trt_cuda_graph_enable", flag(), Reach.GENERATOR, why=FIXED_SHAPES),
    Row("trt_preview_features", text()),
    Row("trt_op_types_to_exclude", text()),
    Row("trt_dump_ep_context_model", flag()),
    Row("trt_ep_context_file_path", text()),
    Row("trt_ep_context_embed_mode", number(0, 1)),
    Row("has_user_compute_stream", flag(), impossible=POINTER),
    Row("user_compute_stream", number(), impossible=POINTER),
)

NV_TENSORRT_RTX: tuple[Row, ...] = (
    Row("device_id", number()),
    Row("nv_max_workspace_size", size()),
    Row("nv_max_shared_mem_size", size()),
    Row("nv_dump_subgraphs", flag()),
    Row("nv_detailed_build_log", flag()),
    Row("nv_profile_min_shapes", shapes()),
    Row("nv_profile_max_shapes", shapes()),
    Row("nv_profile_opt_shapes", shapes()),
    Row("nv_multi_profile_enable", flag()),
    Row("nv_use_external_data_initializer", flag()),
    Row("nv_runtime_cache_path", text()),
    Row("enable_cuda_graph", flag(), Reach.GENERATOR, why=FIXED_SHAPES),
    Row("has_user_compute_stream", flag(), impossible=POINTER),
    Row("user_compute_stream", number(), impossible=POINTER),
    Row("user_aux_stream_array", number(), impossible=POINTER),
)


_HARDWARE = r"(CPU|NPU|GPU(\.\d+)?)"
_DEVICE_TYPE = re.compile(rf"{_HARDWARE}|(HETERO|MULTI|AUTO|BATCH):{_HARDWARE}(,{_HARDWARE})*")


def _device_type() -> Kind:
    def read(value: Value) -> str:
        text = str(value).upper()
        if not _DEVICE_TYPE.fullmatch(text):
            raise ValueError
        return text

    return Kind("CPU, GPU, GPU.0, NPU or a combination such as AUTO:GPU,CPU", read)


_SWITCH = flag("True", "False")

OPENVINO: tuple[Row, ...] = (
    Row("device_type", _device_type()),
    Row("device_id", text()),
    Row("device_luid", text()),
    Row("precision", choice("FP32", "FP16", "ACCURACY")),
    Row("num_of_threads", number(1)),
    Row("num_streams", number(1)),
    Row("cache_dir", text()),
    Row("load_config", text()),
    Row("model_priority", choice("LOW", "MEDIUM", "HIGH", "DEFAULT")),
    Row("layout", text()),
    Row("reshape_input", text()),
    Row("enable_opencl_throttling", _SWITCH),
    Row("enable_qdq_optimizer", _SWITCH),
    Row("enable_causallm", _SWITCH),
    Row("disable_dynamic_shapes", _SWITCH),
    Row("context", text(), impossible=POINTER),
)


@dataclass(frozen=True)
class Provider:
    """An execution provider of ONNX Runtime: its names in the configuration, in ONNX Runtime and in onnxruntime-genai,
    its options, and the package that installs it.
    """

    name: str
    # onnxruntime-genai's name; None if it has none.
    genai: str | None
    # ONNX Runtime's name.
    onnxruntime: str
    rows: tuple[Row, ...] = ()
    # Names of the providers that by default run the nodes that this one does not support.
    fallback: tuple[str, ...] = ()
    # ONNX Runtime's name of the device's memory, if the KV cache of a batch can be allocated there; otherwise "".
    memory: str = ""
    # The Python package of a provider that is not built in.
    package: str = ""
    # The extra of this package that installs a provider which is built into ONNX Runtime.
    extra: str = ""


_DIRECTML = (
    Row("device_id", number(), Reach.BATCHED),
    Row("device_index", number(), Reach.GENERATOR),
    Row("luid", text(), Reach.GENERATOR),
    Row("performance_preference", choice("default", "high_performance", "minimum_power"), Reach.BATCHED),
    Row("device_filter", choice("gpu", "npu", "any"), Reach.BATCHED),
    Row("disable_metacommands", flag("true", "false"), Reach.BATCHED),
    Row("enable_graph_capture", flag(), Reach.GENERATOR),
)
_WEBGPU = (
    Row("deviceId", number()),
    Row("preferredLayout", choice("NHWC", "NCHW")),
    Row("enableGraphCapture", flag(), Reach.GENERATOR),
    Row("enableInt64", flag()),
    Row("enablePIXCapture", flag()),
    Row("preserveDevice", flag()),
    Row("dawnBackendType", choice("D3D12", "Vulkan")),
    Row("powerPreference", choice("high-performance", "low-power")),
    Row("validationMode", choice("disabled", "wgpuOnly", "basic", "full")),
    Row("storageBufferCacheMode", choice("disabled", "lazyRelease", "simple", "bucket")),
    Row("uniformBufferCacheMode", choice("disabled", "lazyRelease", "simple", "bucket")),
    Row("queryResolveBufferCacheMode", choice("disabled", "lazyRelease", "simple", "bucket")),
    Row("defaultBufferCacheMode", choice("disabled", "lazyRelease", "simple", "bucket")),
    Row("forceCpuNodeNames", text()),
)
_QNN = (
    Row("backend_type", choice("cpu", "gpu", "htp", "saver")),
    Row("backend_path", text()),
    Row("device_id", number()),
    Row("soc_model", number()),
    Row("htp_arch", number()),
    Row("vtcm_mb", number(1)),
    Row("rpc_control_latency", number()),
    Row("profiling_level", choice("off", "basic", "detailed", "optrace")),
    Row("profiling_file_path", text()),
    Row(
        "htp_performance_mode",
        choice(
            *("burst", "balanced", "default", "high_performance", "high_power_saver", "low_balanced"),
            *("extreme_power_saver", "low_power_saver", "power_saver", "sustained_high_performance"),
        ),
    ),
    Row("htp_graph_finalization_optimization_mode", number(0, 3)),
    Row("qnn_context_priority", choice("low", "normal", "normal_high", "high")),
    Row("qnn_saver_path", text()),
    Row("op_packages", text()),
    Row("enable_htp_fp16_precision", flag()),
    Row("enable_htp_shared_memory_allocator", flag()),
    Row("enable_htp_spill_fill_buffer", flag()),
    Row("offload_graph_io_quantization", flag()),
    Row("dump_json_qnn_graph", flag()),
    Row("json_qnn_graph_dir", text()),
)

CPU = "cpu"
PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(CPU, "CPU", "CPUExecutionProvider", memory="cpu"),
        Provider("cuda", "cuda", "CUDAExecutionProvider", CUDA, memory="cuda", extra="cuda"),
        Provider("tensorrt", None, "TensorrtExecutionProvider", TENSORRT, ("cuda",), memory="cuda"),
        Provider("nv_tensorrt_rtx", "NvTensorRtRtx", "NvTensorRTRTXExecutionProvider", NV_TENSORRT_RTX),
        Provider("openvino", "OpenVINO", "OpenVINOExecutionProvider", OPENVINO, package="onnxruntime_ep_openvino"),
        Provider("directml", "DML", "DmlExecutionProvider", _DIRECTML, extra="winml"),
        Provider("webgpu", "WebGPU", "WebGpuExecutionProvider", _WEBGPU),
        Provider("qnn", "QNN", "QNNExecutionProvider", _QNN),
    )
}


def provider(name: str) -> Provider:
    """Return the execution provider that has the name `name` in the configuration.

    A provider that is not in PROVIDERS comes from a library, and has the same name in ONNX Runtime and
    onnxruntime-genai.
    """
    return PROVIDERS.get(name) or Provider(name, name, name)


def is_scripted(device: str) -> bool:
    """Return whether a device writes scripted answers, with a tokenizer and a chat template of its own, instead of
    running a model. Tests and demonstrations of load use such devices.
    """
    return device.startswith("scripted")


# Other names that people use for devices, with the maker where that is unclear.
_NICKNAMES = {
    "gpu": {"cuda": " (NVIDIA)", "directml": " (Windows)"},
    "nvidia": {"cuda": ""},
    "trt": {"tensorrt": ""},
    "rtx": {"nv_tensorrt_rtx": ""},
    "intel": {"openvino": ""},
}


# Characters of a name that are compared.
_MAX_NAME = 40


def suggested_devices(name: str) -> str:
    """Return the end of an error message about the unknown device `name`: `; did you mean …?` with the most similar
    names, or a list of the known devices.
    """
    letters = name.strip().lower().rstrip(string.digits)
    index = name.strip()[len(letters) :]
    number = f":{index}" if 1 <= len(index) <= 3 else ""
    kind = letters.rstrip(" :_-")[:_MAX_NAME]
    by_library = {library_name: p.name for p in PROVIDERS.values() for library_name in (p.genai or "", p.onnxruntime)}
    libraries = {
        library_name.lower(): {server_name: ""} for library_name, server_name in by_library.items() if library_name
    }
    similar = difflib.get_close_matches(kind, PROVIDERS, n=1, cutoff=0.7)
    suggestions = libraries.get(kind) or _NICKNAMES.get(kind) or dict.fromkeys(similar, "")
    if not suggestions:
        return f"; known are {', '.join(PROVIDERS)}"
    return f"; did you mean {' or '.join(f'{device}{number}{whose}' for device, whose in suggestions.items())}?"
