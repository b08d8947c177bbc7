"""The options of ONNX Runtime's CUDA execution provider (OrtCUDAProviderOptionsV2), and of its memory arena.

onnxruntime-genai takes those of the arena separately.
"""

from genai_server.options.table import Reach, Row
from genai_server.options.values import choice, flag, number, size

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

# Triton's deprecated form: options among the model's parameters, with numbers instead of words.
DEPRECATED = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
