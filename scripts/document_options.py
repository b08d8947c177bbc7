"""Regenerate docs/from-triton.md and docs/evidence/options.md from the option tables.

Run it with .venv/bin/python.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from genai_server.options import session
from genai_server.options.nvidia import DEPRECATED
from genai_server.options.providers import PROVIDERS
from genai_server.options.session import ENTRIES, RUN, SESSION
from genai_server.options.table import Reach, Row
from genai_server.options.triton import BACKEND

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "from-triton.md"
EVIDENCE = ROOT / "docs" / "evidence" / "options.md"

DEVICE = "tests/options/test_check.py"
LIBRARIES = "tests/engine/model/test_session_options.py"
TRITON = "tests/options/test_triton.py"
OPENVINO = "tests/engine/test_openvino.py"
OPERATORS = "tests/engine/test_custom_operators.py"
BUFFERS = "tests/engine/kv_cache/test_paged_buffers.py"
LIBRARY_BATCH = "tests/engine/runners/test_og_engine.py"
REACHES = {Reach.BOTH: "both", Reach.GENERATOR: "onnxruntime-genai's model", Reach.BATCHED: "the batched session"}

# Tests of session options.
FIELD = f"`{LIBRARIES}::test_an_option_is_a_field_of_the_batched_session`"
OVERLAY = "`::test_option_is_added_to_the_overlay_of_onnxruntime_genai`"
ANSWERS = "`tests/engine/runners/test_choose.py::test_a_model_answers_with_options_as_without`"
# Session options whose effect a test shows. For the others, tests show only that they are accepted.
EFFECT_SHOWN = {
    *(session.THREADS, "inter_op_num_threads", session.MODE, session.LEVEL, "level", session.POOL, session.LIBRARIES),
    "session.disable_cpu_ep_fallback",
}
SESSION_TESTS = {
    session.THREADS: f"{FIELD}, {OVERLAY}, `::test_onnxruntime_genai_accepts_the_overlay_and_its_threads`",
    "inter_op_num_threads": f"{FIELD}, {OVERLAY}",
    session.MODE: f"{FIELD}, `::test_parallel_execution_has_threads_of_its_own`",
    session.LEVEL: f"{FIELD}, {OVERLAY}, `::test_a_level_of_optimization_leaves_its_graph`",
    session.ARENA: f"{FIELD}, {OVERLAY}, {ANSWERS}",
    session.PATTERN: f"{FIELD}, {OVERLAY}, {ANSWERS}",
    session.POOL: f"{FIELD}, `tests/engine/runners/test_choose.py::test_a_global_pool_is_shared_by_all_sessions`",
    session.SHRINKAGE: f"`{LIBRARIES}::test_arena_shrinkage_is_an_option_of_every_pass`, {ANSWERS}",
}
CHECKED = f"`{DEVICE}::test_each_session_option_is_accepted_and_checked`"
OPENS = f"{CHECKED}, `{LIBRARIES}::test_both_runtimes_open_a_model_with_an_entry`"
# Entries with other tests.
REFUSING = {
    "session.disable_cpu_ep_fallback": f"{CHECKED}, `{LIBRARIES}::"
    "test_nodes_that_would_be_left_to_the_cpu_can_be_refused`",
    **dict.fromkeys(
        (f"session.moe_expert_counter_{name}" for name in ("alpha", "beta", "state_file")),
        f"{CHECKED}, `{LIBRARIES}::test_expert_options_are_refused_without_expert_counting`",
    ),
    "session.use_device_allocator_for_initializers": f"`{LIBRARIES}::test_an_entry_is_added_to_both_sessions`, "
    f"{ANSWERS}",
}
# Options with which a test opened a session of OpenVINO.
OPENED = {
    *("device_type", "precision", "num_of_threads", "num_streams", "cache_dir", "load_config", "model_priority"),
    *("enable_opencl_throttling", "enable_qdq_optimizer", "enable_causallm", "disable_dynamic_shapes"),
}

# The options that the documentation of Triton's backend has.
TRITONS_OPTIONS = {
    *("max_workspace_size_bytes", "trt_max_partition_iterations", "trt_min_subgraph_size", "precision_mode"),
    *("int8_calibration_table_name", "int8_use_native_calibration_table", "trt_dla_enable", "trt_dla_core"),
    *("trt_engine_cache_enable", "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_dump_subgraphs"),
    *("trt_force_sequential_engine_build", "trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback"),
    *("trt_timing_cache_enable", "trt_timing_cache_path", "trt_force_timing_cache", "trt_detailed_build_log"),
    *("trt_build_heuristics_enable", "trt_sparsity_enable", "trt_builder_optimization_level"),
    *("trt_auxiliary_streams", "trt_tactic_sources", "trt_extra_plugin_lib_paths", "trt_profile_min_shapes"),
    *("trt_profile_max_shapes", "trt_profile_opt_shapes", "trt_cuda_graph_enable", "trt_dump_ep_context_model"),
    *("trt_ep_context_file_path", "trt_ep_context_embed_mode", "cudnn_conv_use_max_workspace"),
    *("use_ep_level_unified_stream", "cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy"),
    *("do_copy_in_default_stream", "intra_op_thread_count", "inter_op_thread_count", "execution_mode", "level"),
    *("enable_mem_arena", "enable_mem_pattern", "memory.enable_memory_arena_shrinkage"),
    *("session.use_device_allocator_for_initializers", "enable-global-threadpool"),
}

PAGE_HEAD = f"""# From Triton's ONNX Runtime backend

Where the options of [Triton's ONNX Runtime backend](https://github.com/triton-inference-server/onnxruntime_backend)
are here. [All options](evidence/options.md) of sessions and execution providers have a page of their own.

    genai-server import-triton config.pbtxt --backend-config={BACKEND},enable-global-threadpool=1 > genai-server.toml

`import-triton` prints a model's configuration as `genai-server.toml`, and what has no place there above it as
comments. For TensorRT and other options that reach only the batched session it adds `scheduler = "batched"` and
`kv_cache_bytes`, whose value is a guess to review.

- Triton's own example for TensorRT has a brace too many before `trt_engine_cache_enable`, and is no valid text. The
  error of `import-triton` names the place.
- Names and values are ONNX Runtime's; Triton's names work, too. Unknown names and wrong values are refused before a
  model is loaded. [settings.md](settings.md#session-options) says where the tables are in the file, and which of them
  wins.
- An engine runs the model in the batched session of ONNX Runtime or, where [the batch does not take
  it](models.md#what-fits), as onnxruntime-genai's model. The column “reaches” says which of the two takes an
  option. One that does not reach the runner of the requests is refused. Where both are loaded, as for adapters on a
  GPU, each has a thread pool of its own.
- Triton numbers levels of graph optimization differently: `level` takes Triton's numbers, `graph_optimization_level`
  ONNX Runtime's. ONNX Runtime's 3 (`ORT_ENABLE_LAYOUT`) is refused, because onnxruntime-genai has no name for it.

**Not tried:** the options of accelerators. The [tests](evidence/options.md) show that names are known, values are
checked, and what is passed on, but not what a provider makes of it. OpenVINO was tried on a CPU, with
onnxruntime-ep-openvino 1.8.1, which accepts unknown options silently.

## On a GPU

Tried on an H100 with CUDA 13 ([figures](evidence/benchmarks.md#gpus)).

- `GENAI_DEVICE=cuda` batches requests by ONNX Runtime's paged attention, with keys and values of 16 bits in blocks of
  256 tokens. They get nine tenths of the memory that weights and passes leave, or `GENAI_KV_CACHE_BYTES`. The device
  returns the 64 best tokens of each position, and all logits only where these cannot decide.
- A batch there refuses `exact`, and has no draft model. Hybrids, speech, ropes with other factors for long texts,
  adapters, and all with `GENAI_EXACT=true` run on onnxruntime-genai's model, one by one.
- `"ep.cuda.fpa_intb_gemm" = "1"` in `[session]` makes batches of an int4 model 1.5 to 2 times as fast, prompts slower.
- CUDA graphs (`enable_cuda_graph`) work on onnxruntime-genai's model only, and are captured in the warm-up. In a
  batch they and `trt_cuda_graph_enable` are refused, because its shapes change.
- Models with paged attention (`use_paged_attention=true`, CUDA and WebGPU) run in onnxruntime-genai's own batch; so
  does any model with `GENAI_SCHEDULER=library`, on a CPU in fixed batches of up to four. It refuses `exact`,
  `logprobs`, `logit_bias`, `bad_words`, `allowed_token_ids`, `min_p`, frequency and presence penalties, and grammars
  of several parts.

## Session options

In `[session]`.
"""

CONFIGURATION = f"""
## Backend and model configuration

| Triton | here |
|---|---|
| `{BACKEND},enable-global-threadpool` | `global_thread_pool` in `[session]` |
| `{BACKEND},intra_op_thread_count`, `{BACKEND},inter_op_thread_count` | `intra_op_num_threads`, \
`inter_op_num_threads` in `[session]`, the sizes of that pool |
| `{BACKEND},default-max-batch-size`, `max_batch_size` | the setting `max_batch_size`, 16 by default |
| `--disable-auto-complete-config` | nothing: a model directory describes its model. `import-triton` takes it, \
and then ignores `default-max-batch-size` as Triton does |
| `name` | the setting `model_name` |
| `instance_group` | the setting `device`; one engine process for each, which batches |
| `model_operations.op_library_filename` | `custom_op_libraries` in `[session]`, paths from the model directory or \
from here; onnxruntime-genai's model takes one, in the model directory or below the working directory |
| `optimization.execution_accelerators` | `providers` of a device, in their order |
| `model_warmup` | nothing: an engine warms up before it is ready |
| all others | left out, and named above the translation |

## Providers

The options of each are in `[provider.NAME]`; those that Triton does not have are [listed apart](evidence/options.md).

| here | onnxruntime-genai | ONNX Runtime |
|---|---|---|
"""

EVIDENCE_HEAD = """# All options of sessions and providers

Values, which runner an option reaches, and its tests ([from Triton](../from-triton.md), [where options
stand](../settings.md#session-options)). No accelerator was at hand, so the tests do not show what a provider makes of
an option. Tests of OpenVINO are skipped if its package is not installed or finds no device; tests of CUDA skip
without one.

| claim | test |
|---|---|
"""

CLAIMS = {
    "`serve` accepts what `import-triton` makes of each example of Triton's documents": "`tests/test_from_triton.py::"
    "test_serve_accepts_translated_examples_of_tritons_documents`",
    "a batch on a device's blocks answers as one on the CPU's slots": f"`{BUFFERS}::"
    "test_a_batch_on_blocks_answers_as_on_slots`, `::test_batch_on_cuda_answers_as_on_the_cpu`",
    "the most likely tokens that a device chooses are those of all": f"`{BUFFERS}::"
    "test_the_best_are_those_of_all_in_any_order_of_passes`, `::test_token_chosen_from_the_best_equals_one_from_all`, "
    "`::test_the_best_on_cuda_are_those_of_all`",
    "onnxruntime-genai's own batch, on GPUs with a fake of the library": f"`{LIBRARY_BATCH}::"
    "test_answers_side_by_side_are_those_of_generators`, `::test_later_request_joins_and_no_token_is_held_back`, "
    "`tests/test_library_batch.py::test_many_clients_are_answered`",
    "`enable-global-threadpool`, and its threads": f"`{TRITON}::test_global_pool_overrides_the_models_threads`",
    "`default-max-batch-size`, `max_batch_size`": f"`{TRITON}::test_a_batch_size_is_the_models_or_the_backends`",
    "`name`": f"`{TRITON}::test_the_command_prints_what_the_server_reads`",
    "`instance_group`": f"`{TRITON}::test_devices_come_from_the_instance_groups`",
    "`custom_op_libraries`": f"`{OPERATORS}::test_operator_library_of_the_model_works_in_both_runtimes`, "
    "`::test_missing_operator_library_is_refused_with_the_option`, `::test_a_server_answers_with_it`, "
    f"`{LIBRARIES}::test_a_library_of_operators_that_does_not_load_is_named`, "
    "`::test_second_operator_library_is_refused_for_genai`",
    "`optimization.execution_accelerators`": f"`{TRITON}::test_an_option_of_tensorrt_and_cuda_behind_it`, "
    f"`{LIBRARIES}::test_providers_are_appended_in_order_with_their_options`",
    "`model_warmup`": "`tests/engine/runners/test_warm_up.py::test_a_chunk_is_read_and_tokens_are_decoded`",
    "all other sections": f"`{TRITON}::test_untranslatable_section_is_named`",
    "names of providers": f"`{LIBRARIES}::test_onnxruntime_genai_gets_its_own_name_of_a_provider`, "
    f"`{DEVICE}::test_an_option_that_does_not_reach_a_runner_is_found`",
    "OpenVINO answers as the CPU alone": f"`{OPENVINO}::test_the_batch_and_the_generator_answer_as_on_the_cpu_alone`",
    "providers from a `library` or `package`": f"`{DEVICE}::test_a_provider_from_outside_takes_any_option`, "
    f"`{LIBRARIES}::test_library_without_a_provider_is_refused`, "
    f"`{OPENVINO}::test_shares_of_both_providers_are_reported`",
}


def code(names: Iterable[str]) -> str:
    """Names in the document's form."""
    return ", ".join(f"`{name}`" for name in names)


def session_rows() -> list[Row]:
    """The session options that can be set."""
    return [row for row in (*SESSION, *RUN, *ENTRIES) if not row.impossible]


def session_tests(row: Row) -> str:
    """The tests of a session option."""
    if row.means:  # only Triton has this name
        return f"`{TRITON}::test_an_option_of_the_session`, `{DEVICE}::test_tritons_levels_are_not_onnx_runtimes`"
    note = "" if row.name in EFFECT_SHOWN else "that it is accepted, not what it does: "
    return note + (SESSION_TESTS.get(row.name) or REFUSING.get(row.name, OPENS))


def provider_tests(provider: str, row: Row) -> str:
    """The tests of a provider's option."""
    if row.means:
        return f"`{DEVICE}::test_a_precision_mode_is_a_switch_of_tensorrt`"
    if row.name in DEPRECATED and provider == "cuda":
        return f"`{DEVICE}::test_a_deprecated_option_of_cuda_is_taken_with_a_warning`"
    tests = f"`{DEVICE}::test_each_provider_option_is_accepted_and_checked`"
    if provider == "openvino" and row.name in OPENED and not row.impossible:
        tests += f", `{OPENVINO}::test_a_session_opens_with_an_option`"
    return tests


def shown_name(row: Row) -> str:
    """An option with its other names."""
    return f"`{row.name}`" + (f" (also {code(row.also)})" if row.also else "")


def shown_values(row: Row) -> str:
    """The values of an option."""
    if row.impossible:
        return f"cannot be set: {row.impossible}"
    if row.name == "level":
        (name,) = {option for options in row.means.values() for option in options}
        values = ", ".join(f"{key}: {options[name]}" for key, options in row.means.items())
        return f"`{name}` in Triton's numbers, {values}, any other number: all"
    return row.kind.expected


def options_table(rows: Iterable[Row], *, tests: Callable[[Row], str] | None = None) -> list[str]:
    """Options with the same values, reach and tests share a row."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        proof = f" {tests(row)} |" if tests else ""
        groups.setdefault(f"{shown_values(row)} | {REACHES[row.reach]} |{proof}", []).append(shown_name(row))
    head = ["| options | values | reaches | test |", "|---|---|---|---|"]
    if tests is None:
        head = ["| options | values | reaches |", "|---|---|---|"]
    return [*head, *(f"| {', '.join(names)} | {rest}" for rest, names in groups.items())]


def is_tritons(row: Row) -> bool:
    """Whether Triton's backend documents an option, under this or another name."""
    return not TRITONS_OPTIONS.isdisjoint((row.name, *row.also))


def page() -> str:
    """docs/from-triton.md."""
    lines = [PAGE_HEAD, *options_table(filter(is_tritons, session_rows())), CONFIGURATION.rstrip("\n")]
    for known in PROVIDERS.values():
        genai = f"`{known.genai}`" if known.genai else "none: only the batched session has it"
        lines.append(f"| `{known.name}` | {genai} | `{known.onnxruntime}` |")
    lines.append("| any other name, with `library` or `package` in `[provider.NAME]` | the same | the same |")
    for name in ("cuda", "tensorrt"):
        lines += ["", f"### {name}", "", *options_table(filter(is_tritons, PROVIDERS[name].rows))]
    lines += ["", f"Deprecated in Triton's model parameters, where they are numbers: {code(DEPRECATED)} of `cuda`."]
    return "\n".join(lines) + "\n"


def evidence() -> str:
    """docs/evidence/options.md."""
    lines = [EVIDENCE_HEAD.rstrip("\n"), *(f"| {claim} | {tests} |" for claim, tests in CLAIMS.items())]
    lines += ["", "## Session options", "", "In `[session]`.", ""]
    lines += options_table(session_rows(), tests=session_tests)
    for known in PROVIDERS.values():
        if known.rows:
            lines += ["", f"## {known.name}", "", f"In `[provider.{known.name}]`.", ""]
            lines += options_table(known.rows, tests=partial(provider_tests, known.name))
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    EVIDENCE.write_text(evidence(), encoding="utf-8")


if __name__ == "__main__":
    main()
