"""Regenerate docs/from-triton.md and docs/evidence/options.md from the option tables.

Run it with .venv/bin/python.
"""

from collections.abc import Iterable
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
BUFFERS = "tests/engine/runners/test_device_buffers.py"
LIBRARY_BATCH = "tests/engine/runners/test_og_engine.py"
REACHES = {Reach.BOTH: "both", Reach.GENERATOR: "onnxruntime-genai's model", Reach.BATCHED: "the batched session"}

# Tests of session options.
FIELD = f"`{LIBRARIES}::test_an_option_is_a_field_of_the_batched_session`"
OVERLAY = "`::test_option_is_added_to_the_overlay_of_onnxruntime_genai`"
ANSWERS = "`tests/engine/runners/test_choose.py::test_a_model_answers_with_options_as_without`"
# Session options whose effect a test shows; of the others tests show only that they are accepted.
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

PAGE_HEAD = f"""# From Triton's ONNX Runtime backend

All options of sessions and execution providers, for every operator, and where the options of [Triton's ONNX Runtime
backend](https://github.com/triton-inference-server/onnxruntime_backend) are here.

    genai-server import-triton config.pbtxt --backend-config={BACKEND},enable-global-threadpool=1 > genai-server.toml

`import-triton` prints a model's configuration as `genai-server.toml`, and what has no place there above it as
comments. For TensorRT and other options that reach only the batched session it adds `scheduler = "batched"` and
`kv_cache_bytes`, whose value is a guess to review.

- Names and values are ONNX Runtime's; Triton's names work, too. Unknown names and wrong values are refused before a
  model is loaded. [settings.md](settings.md#session-options) says where the tables are in the file, and which of them
  wins.
- An engine has two copies of ONNX Runtime: onnxruntime-genai's model and the batched session. They share no thread
  pool. The column “reaches” says which of them takes an option. One that does not reach the runner of the requests is
  refused.
- Triton numbers levels of graph optimization differently: `level` takes Triton's numbers, `graph_optimization_level`
  ONNX Runtime's. ONNX Runtime's 3 (`ORT_ENABLE_LAYOUT`) is refused, because onnxruntime-genai has no name for it.

**Not tried:** no accelerator was at hand. The [tests](evidence/options.md) show that names are known, values are
checked, and what is passed on, but not what a provider makes of it. OpenVINO was tried on a CPU, with
onnxruntime-ep-openvino 1.8.1, which accepts unknown options silently.

## On a GPU

Nothing here has run on a GPU or was measured there.

- `GENAI_DEVICE=cuda` runs requests on onnxruntime-genai's model, one token of one request at a time. Options for the
  batched session are refused.
- `GENAI_SCHEDULER=batched` with `GENAI_KV_CACHE_BYTES` batches on `cuda` and `tensorrt`. Keys and values stay in the
  device's memory, whose free size is unknown, so the setting is required. The weights are loaded twice. The 64 most
  likely tokens are chosen on the device; answers without `top_k` from 1 to 64, and those with penalties, biases, a
  grammar, log probabilities or `min_tokens`, bring all logits to the host.
- CUDA graphs (`enable_cuda_graph`) work on onnxruntime-genai's model only, and are captured in the warm-up. In a
  batch they and `trt_cuda_graph_enable` are refused, because its shapes change.
- Models with paged attention (`use_paged_attention=true`, CUDA and WebGPU) run in onnxruntime-genai's own batch; so
  does any model with `GENAI_SCHEDULER=library`, on a CPU in fixed batches of up to four. It refuses `exact`,
  `logprobs`, `logit_bias`, `min_p`, frequency and presence penalties, and grammars of several parts. It honours
  temperature, `top_k`, `top_p`, the repetition penalty, `min_tokens`, schemas, `seed` (where it batches dynamically),
  and all that ends an answer.

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
| `name` | the setting `model_name` |
| `instance_group` | the setting `device`; one engine process for each, which batches |
| `model_operations.op_library_filename` | `custom_op_libraries` in `[session]`, paths from the model directory or \
from here; onnxruntime-genai's model takes one, in the model directory or below the working directory |
| `optimization.execution_accelerators` | `providers` of a device, in their order |
| `model_warmup` | nothing: an engine warms up before it is ready |
| all others | left out, and named above the translation |

## Providers

The options of each are in `[provider.NAME]`.

| here | onnxruntime-genai | ONNX Runtime |
|---|---|---|
"""

EVIDENCE_HEAD = """# Evidence of options

The tests of [session and provider options](../from-triton.md). Tests of OpenVINO are skipped if its package is not
installed or finds no device; tests of CUDA skip without one.

| claim | test |
|---|---|
"""

CLAIMS = {
    "`serve` accepts what `import-triton` makes of each example of Triton's documents": "`tests/test_from_triton.py::"
    "test_serve_accepts_translated_examples_of_tritons_documents`",
    "a batch on a device's memory answers as on the CPU, bit for bit": f"`{BUFFERS}::"
    "test_batch_on_device_buffers_equals_the_cpus_bit_for_bit`, `::test_batch_on_cuda_answers_as_on_the_cpu`",
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
    return SESSION_TESTS.get(row.name) or REFUSING.get(row.name, OPENS)


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


def options_table(rows: Iterable[Row]) -> list[str]:
    """Options with the same values and the same reach share a row."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((shown_values(row), REACHES[row.reach]), []).append(shown_name(row))
    lines = [f"| {', '.join(names)} | {values} | {reach} |" for (values, reach), names in groups.items()]
    return ["| options | values | reaches |", "|---|---|---|", *lines]


def page() -> str:
    """docs/from-triton.md."""
    lines = [PAGE_HEAD, *options_table(session_rows()), CONFIGURATION.rstrip("\n")]
    for known in PROVIDERS.values():
        genai = f"`{known.genai}`" if known.genai else "none: only the batched session has it"
        lines.append(f"| `{known.name}` | {genai} | `{known.onnxruntime}` |")
    lines.append("| any other name, with `library` or `package` in `[provider.NAME]` | the same | the same |")
    for known in PROVIDERS.values():
        if known.rows:
            lines += ["", f"### {known.name}", "", *options_table(known.rows)]
    deprecated = code(name for name in DEPRECATED)
    lines += ["", f"Deprecated in Triton's model parameters, where they are numbers: {deprecated} of `cuda`."]
    return "\n".join(lines) + "\n"


def evidence() -> str:
    """docs/evidence/options.md."""
    lines = [EVIDENCE_HEAD.rstrip("\n"), *(f"| {claim} | {tests} |" for claim, tests in CLAIMS.items())]
    groups: dict[str, list[str]] = {}
    for row in session_rows():
        note = "" if row.name in EFFECT_SHOWN else "accepted and checked; what it does was not: "
        groups.setdefault(f"{note}{session_tests(row)}", []).append(row.name)
    lines += ["", "## Session options", "", "| options | test |", "|---|---|"]
    lines += [f"| {code(names)} | {tests} |" for tests, names in groups.items()]
    for known in PROVIDERS.values():
        if known.rows:
            groups = {}
            for row in known.rows:
                groups.setdefault(provider_tests(known.name, row), []).append(row.name)
            lines += ["", f"## {known.name}", "", "| options | test |", "|---|---|"]
            lines += [f"| {code(names)} | {tests} |" for tests, names in groups.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    EVIDENCE.write_text(evidence(), encoding="utf-8")


if __name__ == "__main__":
    main()
