"""The options of ONNX Runtime's execution providers for NVIDIA GPUs: CUDA, TensorRT and TensorRT-RTX.

The names are the fields of OrtCUDAProviderOptionsV2 and OrtTensorRTProviderOptionsV2, and Triton's names where those
are different. onnxruntime-genai takes the options of CUDA's memory arena separately.
"""

from genai_server.options.table import Reach, Row, choice, flag, number, shapes, size, text

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
