"""The options of ONNX Runtime's TensorRT execution provider (OrtTensorRTProviderOptionsV2).

Some have other names in Triton. The options of the TensorRT-RTX provider, for RTX cards, follow.
"""

from genai_server.options.cuda import FIXED_SHAPES, POINTER
from genai_server.options.table import Reach, Row
from genai_server.options.values import choice, flag, number, shapes, size, text

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
