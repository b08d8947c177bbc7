"""Regenerate docs/from-triton.md from the option tables (run it with .venv/bin/python)."""

from pathlib import Path

from genai_server.options import session
from genai_server.options.nvidia import DEPRECATED
from genai_server.options.providers import PROVIDERS
from genai_server.options.session import ENTRIES, RUN, SESSION
from genai_server.options.table import Reach, Row
from genai_server.options.triton import BACKEND

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "from-triton.md"

DEVICE = "tests/options/test_check.py"
LIBRARIES = "tests/engine/model/test_session_options.py"
TRITON = "tests/options/test_triton.py"
OPENVINO = "tests/engine/test_openvino.py"
OPERATORS = "tests/engine/test_custom_operators.py"
REACHES = {Reach.BOTH: "both", Reach.GENERATOR: "onnxruntime-genai's model", Reach.BATCHED: "the batched session"}

# Tests of the rows in the table of session options.
FIELD = f"`{LIBRARIES}::test_an_option_is_a_field_of_the_batched_session`"
OVERLAY = "`::test_option_is_added_to_the_overlay_of_onnxruntime_genai`"
ANSWERS = "`tests/engine/runners/test_choose.py::test_a_model_answers_with_options_as_without`"
# Options of a session whose effect a test shows; for the others tests show only that they are accepted.
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

HEAD = f"""# From Triton's ONNX Runtime backend

For operators who know [Triton's ONNX Runtime backend](https://github.com/triton-inference-server/onnxruntime_backend):
each of its options, where it is here, and the test that shows it. `genai-server import-triton config.pbtxt` prints a
model's configuration as `genai-server.toml`. What has no place there is printed above it as comments.

    genai-server import-triton config.pbtxt --backend-config={BACKEND},enable-global-threadpool=1 > genai-server.toml

Names and values are ONNX Runtime's; Triton's names work for the same options, too. Before a model is loaded, an unknown
name is refused with the nearest right one, and a wrong value with what is expected.
[settings.md](settings.md#session-options) says where the tables are in the file, and which of them wins.

Triton has its own numbers for levels of graph optimization: its `level` -1 is `basic`, 1 is `extended`, 2 is
`disabled`, and all others are `all`. ONNX Runtime's numbers differ: 0 is `disabled`, 1 `basic`, 2 `extended`, 99 `all`.
`level` takes Triton's, `graph_optimization_level` takes ONNX Runtime's, and `import-triton` writes the words. ONNX
Runtime's 3, `ORT_ENABLE_LAYOUT`, is refused: onnxruntime-genai has no name for it.

On a GPU, TensorRT and some other options reach only the batched session, which needs two more settings. `import-triton`
writes them: `scheduler = "batched"`, and `kv_cache_bytes`, whose value is a guess that an operator should look at.
OpenVINO comes from a package, which it names. What it makes of each example of Triton's documentation passes the checks
of `serve`: `tests/test_from_triton.py::test_serve_accepts_translated_examples_of_tritons_documents`.

An engine has two copies of ONNX Runtime: onnxruntime-genai's model, and the session of the batch. They share no thread
pool, and not every option exists for both. An option that does not reach the runner of the requests is refused: before
an engine starts if the settings alone determine the runner, otherwise when the engine has read the graph. `/healthz`
shows the runner (`batching`) and the reason.

No GPU or other accelerator was at hand when this was written. For every option of a provider the tests show that its
name is known, that its value is checked, and what is passed to the libraries. They do not show what the provider
makes of it. OpenVINO was tried on a CPU, with onnxruntime-ep-openvino 1.8.1, which accepts unknown options silently.
Its tests are skipped if that package is not installed, or finds no device.

## On a GPU

Nothing here has run on a GPU, and nothing is measured. This is built:

- `GENAI_DEVICE=cuda` runs requests on onnxruntime-genai's model, one token of one request at a time, as every device
  but the CPU does (`GENAI_SCHEDULER=auto`). Options that reach only the batched session are refused there.
- `GENAI_SCHEDULER=batched` with `GENAI_KV_CACHE_BYTES` has `cuda` and `tensorrt` batch. Keys and values stay in the
  device's memory, are bound there and are moved there between slots; what is free of that memory is not known, so the
  setting must be given. The weights are there twice, for onnxruntime-genai's model is loaded, too. Shown on the CPU,
  with the same class bit for bit:
  `tests/engine/runners/test_device_buffers.py::test_batch_on_device_buffers_equals_the_cpus_bit_for_bit`; on CUDA
  `::test_batch_on_cuda_answers_as_on_the_cpu`, which skips without one and says so.
- In such a batch the 64 best tokens of each row are chosen on the device, and only they leave it unless a request in
  the step needs more. They are enough for greedy answers, and for sampled ones with `top_k` from 1 to 64. Answers
  without `top_k`, and those with penalties, biases, a grammar, log probabilities or `min_tokens` have the logits of all
  tokens come for the pass. Shown on the CPU:
  `tests/engine/runners/test_device_buffers.py::test_the_best_are_those_of_all_in_any_order_of_passes`,
  `::test_token_chosen_from_the_best_equals_one_from_all`; on CUDA
  `::test_the_best_on_cuda_are_those_of_all`, which skips likewise.
- CUDA graphs (`enable_cuda_graph`) are onnxruntime-genai's own, on its model; the warm-up before `/readyz` runs the
  passes that they are captured in. In a batch they are refused, and so is TensorRT's `trt_cuda_graph_enable`, which
  `import-triton` leaves out: a captured graph is replayed whatever the shapes, and those of a batch change from pass to
  pass. The number of runs before a capture cannot be set.
- Models with paged attention (the model builder's `use_paged_attention=true`, for CUDA and WebGPU) run in
  onnxruntime-genai's own batch, `og.Engine`; `GENAI_SCHEDULER=library` has any other model run there, too. It chooses
  the tokens itself and tells no logits: `exact`, `logprobs`, `logit_bias`, `min_p`, frequency and presence penalties,
  and grammars of several parts are refused by name; temperature, `top_k`, `top_p`, the repetition penalty,
  `min_tokens`, schemas, `seed` (where it batches dynamically) and everything that ends an answer are honoured. A
  cancelled answer is a `cancel_turn`. Profiles are made on a Generator, where the model runs on one, else they are
  refused with the library's reason. Without paged attention the library forms batches of at most four that no further
  request joins. Only this runs on a CPU, and was tried there. What it does on GPUs only was tried with a fake of the
  library: `tests/engine/runners/test_og_engine.py::test_answers_side_by_side_are_those_of_generators`,
  `::test_later_request_joins_and_no_token_is_held_back`,
  `tests/test_library_batch.py::test_many_clients_are_answered`.

## Session options
"""

SESSION_HEAD = """
| Triton | here, in `[session]` | values | reaches | test |
|---|---|---|---|---|
"""
# Above the second table of these.
SESSION_UNCHECKED = """
Not checked: what the following options do. The tests show that each is taken under its names, that its value is
checked, and that a model opens with it where a test of that name stands in its row.
"""

BACKEND_ROWS = f"""
## Backend options

| Triton's command line | here | test |
|---|---|---|
| `{BACKEND},enable-global-threadpool` | `global_thread_pool` in `[session]` | \
`{TRITON}::test_global_pool_overrides_the_models_threads` |
| `{BACKEND},intra_op_thread_count` | `intra_op_num_threads` in `[session]`, the pool's size | \
`{TRITON}::test_global_pool_overrides_the_models_threads` |
| `{BACKEND},inter_op_thread_count` | `inter_op_num_threads` in `[session]`, likewise | \
`{TRITON}::test_global_pool_overrides_the_models_threads` |
| `{BACKEND},default-max-batch-size` | the setting `max_batch_size`, 16 by default | \
`{TRITON}::test_a_batch_size_is_the_models_or_the_backends` |

## The rest of a model's configuration

| Triton | here | test |
|---|---|---|
| `name` | the setting `model_name` | `{TRITON}::test_the_command_prints_what_the_server_reads` |
| `max_batch_size` | the setting `max_batch_size` | `{TRITON}::test_a_batch_size_is_the_models_or_the_backends` |
| `instance_group` | the setting `device`; one engine process for each, which batches | \
`{TRITON}::test_devices_come_from_the_instance_groups` |
| `model_operations.op_library_filename` | `custom_op_libraries` in `[session]`, paths from the model directory or \
from here; onnxruntime-genai's model takes one, in the model directory or below the working directory | \
`{OPERATORS}::test_operator_library_of_the_model_works_in_both_runtimes`, \
`::test_missing_operator_library_is_refused_with_the_option`, `::test_a_server_answers_with_it`, \
`{LIBRARIES}::test_a_library_of_operators_that_does_not_load_is_named`, \
`::test_second_operator_library_is_refused_for_genai` |
| `optimization.execution_accelerators` | `providers` of a device, in their order | \
`{TRITON}::test_an_option_of_tensorrt_and_cuda_behind_it`, `{LIBRARIES}::\
test_providers_are_appended_in_order_with_their_options` |
| `model_warmup` | nothing to say: an engine warms up before it is ready | \
`tests/engine/runners/test_warm_up.py::test_a_chunk_is_read_and_tokens_are_decoded` |
| all others | left out, and named above the translation | `{TRITON}::test_untranslatable_section_is_named` |

## Providers

Not checked: what a provider does on hardware other than a CPU, because no machine with it was at hand. OpenVINO was
tried on a CPU; how fast it is there was not measured.

| here | onnxruntime-genai | ONNX Runtime | test |
|---|---|---|---|
"""

PROVIDER_TEST = f"`{DEVICE}::test_each_provider_option_is_accepted_and_checked`"
# Above the table of a provider's options.
UNCHECKED = {
    "openvino": "Not checked: what an option does. For some of them a test opens a session.",
    "": "Not checked: what the provider makes of an option, because no machine with its hardware was at hand.",
}
# A session was opened with them.
OPENED = {
    *("device_type", "precision", "num_of_threads", "num_streams", "cache_dir", "load_config", "model_priority"),
    *("enable_opencl_throttling", "enable_qdq_optimizer", "enable_causallm", "disable_dynamic_shapes"),
}


def code(*names: str) -> str:
    """Names in the document's form."""
    return ", ".join(f"`{name}`" for name in names)


def session_row(row: Row) -> str:
    """A row of the session options' table."""
    tests = SESSION_TESTS.get(row.name) or REFUSING.get(row.name, OPENS)
    if row.means:  # only Triton has this name
        (name,) = {option for options in row.means.values() for option in options}
        values = ", ".join(f"{key}: {options[name]}" for key, options in row.means.items())
        values += ", any other number: all" if row.name == "level" else ""
        tests = f"`{TRITON}::test_an_option_of_the_session`, `{DEVICE}::test_tritons_levels_are_not_onnx_runtimes`"
        return f"| {code(row.name)} | `{name}` | {values} | {REACHES[row.reach]} | {tests} |"
    triton = code(*row.also) if row.also else code(row.name) if row in RUN or row.name in _SAME else "–"
    return f"| {triton} | `{row.name}` | {row.kind.expected} | {REACHES[row.reach]} | {tests} |"


# Options that have the same name in Triton.
_SAME = {session.MODE, session.PATTERN, "session.use_device_allocator_for_initializers"}


def provider_rows(name: str) -> list[str]:
    """The rows of a provider's options."""
    rows = []
    for row in PROVIDERS[name].rows:
        values = f"cannot be set: {row.impossible}" if row.impossible else row.kind.expected
        tests = PROVIDER_TEST
        if name == "openvino" and row.name in OPENED and not row.impossible:
            tests += f", `{OPENVINO}::test_a_session_opens_with_an_option`"
        if row.means:
            tests = f"`{DEVICE}::test_a_precision_mode_is_a_switch_of_tensorrt`"
        elif row.name in DEPRECATED and name == "cuda":
            values += "; deprecated among a model's parameters, with numbers"
            tests = f"`{DEVICE}::test_a_deprecated_option_of_cuda_is_taken_with_a_warning`"
        also = f" (also {code(*row.also)})" if row.also else ""
        rows.append(f"| `{row.name}`{also} | {values} | {REACHES[row.reach]} | {tests} |")
    return rows


def render() -> str:
    """The document."""
    lines = [HEAD.rstrip("\n")]
    rows = [row for row in (*SESSION, *RUN, *ENTRIES) if not row.impossible]
    for above, shown in ("", True), (SESSION_UNCHECKED, False):
        lines.append(f"{above}{SESSION_HEAD}".rstrip("\n"))
        lines += [session_row(row) for row in rows if (row.name in EFFECT_SHOWN) == shown]
    lines.append(BACKEND_ROWS.rstrip("\n"))
    for known in PROVIDERS.values():
        genai = f"`{known.genai}`" if known.genai else "none: only the batched session has it"
        test = f"`{LIBRARIES}::test_onnxruntime_genai_gets_its_own_name_of_a_provider`"
        if known.genai is None:
            test = f"`{DEVICE}::test_an_option_that_does_not_reach_a_runner_is_found`"
        if known.name == "openvino":
            test += f", `{OPENVINO}::test_the_batch_and_the_generator_answer_as_on_the_cpu_alone`"
        lines.append(f"| `{known.name}` | {genai} | `{known.onnxruntime}` | {test} |")
    lines.append(
        "| any other name, with `library` or `package` in `[provider.NAME]` | the same | the same | "
        f"`{DEVICE}::test_a_provider_from_outside_takes_any_option`, "
        f"`{LIBRARIES}::test_library_without_a_provider_is_refused`; one of a package that loads: "
        f"`{OPENVINO}::test_shares_of_both_providers_are_reported` |"
    )
    for known in PROVIDERS.values():
        if known.rows:
            unchecked = UNCHECKED.get(known.name, UNCHECKED[""])
            lines += ["", f"### {known.name}", "", f"In `[provider.{known.name}]`. {unchecked}", ""]
            lines += ["| option | values | reaches | test |", "|---|---|---|---|", *provider_rows(known.name)]
    return "\n".join(lines) + "\n"


def main() -> None:
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
