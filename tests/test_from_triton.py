"""docs/from-triton.md is what the option tables say, and claims nothing without a test or a plain word that there is
none.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.running_server import ROOT
from tests.test_promised import references

TEXT = (ROOT / "docs" / "from-triton.md").read_text(encoding="utf-8")
TRITONS_OPTIONS = """
max_workspace_size_bytes trt_max_partition_iterations trt_min_subgraph_size precision_mode int8_calibration_table_name
int8_use_native_calibration_table trt_dla_enable trt_dla_core trt_engine_cache_enable trt_engine_cache_path
trt_engine_cache_prefix trt_dump_subgraphs trt_force_sequential_engine_build trt_context_memory_sharing_enable
trt_layer_norm_fp32_fallback trt_timing_cache_enable trt_timing_cache_path trt_force_timing_cache trt_detailed_build_log
trt_build_heuristics_enable trt_sparsity_enable trt_builder_optimization_level trt_auxiliary_streams trt_tactic_sources
trt_extra_plugin_lib_paths trt_profile_min_shapes trt_profile_max_shapes trt_profile_opt_shapes trt_cuda_graph_enable
trt_dump_ep_context_model trt_ep_context_file_path trt_ep_context_embed_mode cudnn_conv_use_max_workspace
use_ep_level_unified_stream cudnn_conv_algo_search gpu_mem_limit arena_extend_strategy do_copy_in_default_stream
intra_op_thread_count inter_op_thread_count execution_mode level enable_mem_arena enable_mem_pattern
memory.enable_memory_arena_shrinkage session.use_device_allocator_for_initializers
onnxruntime,enable-global-threadpool onnxruntime,intra_op_thread_count onnxruntime,inter_op_thread_count
onnxruntime,default-max-batch-size
"""


def test_the_document_is_what_the_tables_say() -> None:
    """Else run scripts/document_options.py."""
    spec = importlib.util.spec_from_file_location("document_options", ROOT / "scripts" / "document_options.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.render() == TEXT


@pytest.mark.parametrize("option", re.findall(r"\S+", TRITONS_OPTIONS))
def test_each_option_of_tritons_backend_has_a_row(option: str) -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert any(f"`{option}`" in row for row in rows)


@pytest.mark.parametrize(
    ("path", "function"), sorted(set(references(TEXT))), ids=lambda part: getattr(part, "name", part)
)
def test_a_test_that_is_named_exists(path: Path, function: str) -> None:
    assert re.search(rf"^def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_each_row_names_a_test() -> None:
    rows = [
        line
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.startswith(("| Triton |", "| Triton's command", "| here |", "| option |"))
    ]
    assert len(rows) > 100
    assert not [row for row in rows if "`tests/" not in row.rsplit("|", 2)[1]]


def test_each_option_of_a_provider_that_can_be_set_says_what_could_not_be_checked() -> None:
    """For no machine with their hardware was at hand; remove this when one was."""
    tables = TEXT.partition("## Providers")[2].partition("\n### ")[2]
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    silent = [row for row in rows if "Not checked: " not in row.rsplit("|", 2)[1]]
    assert not [row for row in silent if "| cannot be set: " not in row]
