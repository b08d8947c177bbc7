"""The options of the table `[session]` in the configuration file, as rows of tables (table.py): fields of ONNX
Runtime's SessionOptions, configuration entries of a session, which are set by name, and options of each run.

Names and values follow onnxruntime_session_options_config_keys.h and onnxruntime_run_options_config_keys.h of ONNX
Runtime 1.31. Triton's names for the same options are those of its ONNX Runtime backend. onnxruntime-genai (0.18,
`SessionOptions_Element` of its config.cpp) has no field for `execution_mode`, and has its own thread pools.
"""

from genai_server.options.providers import CAPTURE_RUNS, CAPTURES_AFTER_WARM_UP, CUDA_PLUGIN
from genai_server.options.table import Reach, Row, anything, arenas, choice, flag, number, number_or_default, text

THREADS = "intra_op_num_threads"
SPINNING = "session.intra_op.allow_spinning"
SPINNING_STOP = "session.force_spinning_stop"
LEVEL = "graph_optimization_level"
MODE = "execution_mode"
ARENA = "enable_cpu_mem_arena"
PATTERN = "enable_mem_pattern"
POOL = "global_thread_pool"
SHRINKAGE = "memory.enable_memory_arena_shrinkage"
LIBRARIES = "custom_op_libraries"

_MAX_THREADS = 1024
# ONNX Runtime's numbers. onnxruntime-genai (0.18) has no name for 3, ORT_ENABLE_LAYOUT.
_LEVELS = {
    "0": "disabled",
    "1": "basic",
    "2": "extended",
    "99": "all",
    "ORT_DISABLE_ALL": "disabled",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_ALL": "all",
}
# Triton's numbers, of which 0 stands for all others; ONNX Runtime's 1 and 2 have other meanings.
_TRITONS_LEVELS = {"-1": "basic", "0": "all", "1": "extended", "2": "disabled"}

SESSION: tuple[Row, ...] = (
    Row(THREADS, number(0, _MAX_THREADS), also=("intra_op_thread_count",)),
    Row("inter_op_num_threads", number(0, _MAX_THREADS), also=("inter_op_thread_count",)),
    Row(MODE, choice("sequential", "parallel", also={"0": "sequential", "1": "parallel"}), Reach.BATCHED),
    Row(LEVEL, choice("disabled", "basic", "extended", "all", also=_LEVELS)),
    Row(
        "level",
        number_or_default(_TRITONS_LEVELS, "0"),
        means={key: {LEVEL: name} for key, name in _TRITONS_LEVELS.items()},
    ),
    Row(ARENA, flag(), also=("enable_mem_arena",)),
    Row(PATTERN, flag()),
    Row(POOL, flag(), Reach.BATCHED, also=("enable-global-threadpool",)),
)

# Entries of run options, which apply to every run.
RUN: tuple[Row, ...] = (Row(SHRINKAGE, arenas()),)

_FLAGS = (
    "session.disable_prepacking",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.set_denormal_as_zero",
    "session.disable_quant_qdq",
    "session.disable_double_qdq_remover",
    "session.enable_quant_qdq_cleanup",
    "session.disable_qdq_constant_folding",
    "session.enable_dq_matmulnbits_fusion",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_model_compile",
    "session.fail_on_suboptimal_compiled_model",
    "session.strict_shape_type_inference",
    "session.prepack.enable_parallel",
    SPINNING,
    "session.inter_op.allow_spinning",
    SPINNING_STOP,
    "session.qdqisint8allowed",
    "session.x64quantprecision",
    "optimization.enable_gelu_approximation",
    "optimization.enable_cast_chain_elimination",
    "mlas.use_lut_gemm",
    "mlas.qnbit.force_fp32",
    "mlas.nchwc_depthwise_sliding",
    "ep.context_enable",
    "ep.context_embed_mode",
    "ep.enable_weightless",
)
_NUMBERS = (
    "session.dynamic_block_base",
    "session.intra_op.spin_duration_us",
    "session.intra_op.spin_backoff_max",
    "session.inter_op.spin_duration_us",
    "session.inter_op.spin_backoff_max",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.graph_optimizations_loop_level",
    "session.function_expansion_byte_limit",
    "session.function_expansion_node_limit",
    "optimization.constant_folding_max_output_size_in_bytes",
)
_TEXTS = (
    "session.intra_op_thread_affinities",
    "session.layer_assignment_settings",
    "session.name_based_layer_assignment",
    "session.node_partition_config_file",
    "session.resource_cuda_partitioning_settings",
    "session.collect_node_memory_stats_to_file",
    "optimization.disable_specified_optimizers",
    "ep.context_file_path",
    "ep.context_model_external_initializers_file_name",
)
# The library contains these names, but does not document their values.
_UNDESCRIBED = (
    "session.allow_released_opsets_only",
    "session.debug_layout_transformation",
    "session.enable_moe_expert_counting",
    "session.enable_moe_expert_statistics",
    "session.moe_expert_counter_alpha",
    "session.moe_expert_counter_beta",
    "session.moe_expert_counter_state_file",
    "session.max_shape_override",
    "session.strict_workspace_verification",
    "session.use_external_initializer_file_buffers_directly",
    "mlas.disable_kleidiai",
    "mlas.kleidiai.conv_igemm_max_work",
    "mlas.nchwc_pointwise_conv_max_input_channel_batch",
    "ep.cuda.fpa_intb_gemm",
    "ep.cuda.fpa_intb_profile_m",
    "ep.cuda.gqa_workspace_max_total_sequence_length",
)
_PROFILES = (
    "POST /v1/admin/runtime_options switches profiles while the server runs; for one of the whole session, set "
    "enable_profiling in the session_options of the model's genai_config.json"
)
_BY_THE_SERVER = "the server sets it itself"
_IMPOSSIBLE = {
    # The library knows these names, but ignores them in a session's entries.
    **{f"session.{name}": f"write {name} instead, without session." for name in (ARENA, PATTERN, LEVEL, MODE, THREADS)},
    "session.inter_op_num_threads": "write inter_op_num_threads instead, without session.",
    "session.use_per_session_threads": f"write {POOL} instead",
    "session.enable_profiling": _PROFILES,
    "session.optimized_model_filepath": _BY_THE_SERVER,
    "session.optimized_model_external_initializers_file_name": _BY_THE_SERVER,
    "session.optimized_model_external_initializers_min_size_in_bytes": _BY_THE_SERVER,
    "session.save_external_prepacked_constant_initializers": _BY_THE_SERVER,
    "session.record_ep_graph_assignment_info": _BY_THE_SERVER,
    "session.compile_only": "a session that only compiles answers nothing",
    "session.load_model_format": "models are ONNX files",
    "session.save_model_format": "no model is saved",
    "optimization.minimal_build_optimizations": "no model is saved",
    "session.gqa_value_layout": "the server keeps keys and values in the layout BNSH",
    "session.use_ort_model_bytes_directly": "models are ONNX files",
    "session.use_ort_model_bytes_for_initializers": "models are ONNX files",
}

ENTRIES: tuple[Row, ...] = (
    *(Row(name, flag()) for name in _FLAGS),
    *(Row(name, number()) for name in _NUMBERS),
    *(Row(name, text()) for name in _TEXTS),
    *(Row(name, anything()) for name in _UNDESCRIBED),
    *(Row(name, text(), impossible=why) for name, why in _IMPOSSIBLE.items()),
)

# What other documentation sets on a session, and where it is set here.
ELSEWHERE: tuple[Row, ...] = (
    Row("enable_profiling", text(), impossible=_PROFILES),
    # The CUDA provider that comes as a plugin takes its options from a session's entries.
    Row(f"{CUDA_PLUGIN}.enable_cuda_graph", flag(), impossible="write enable_cuda_graph in [provider.cuda] instead"),
    Row(f"{CUDA_PLUGIN}.{CAPTURE_RUNS}", number(), impossible=CAPTURES_AFTER_WARM_UP),
)
