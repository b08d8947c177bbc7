"""The options of a device's sessions."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import ConfigurationError
from genai_server.options.device import (
    DeviceOptions,
    check_device,
    reaching,
    unreachable,
    without_spinning_between_passes,
)
from genai_server.options.providers import PROVIDERS
from genai_server.options.session import ELSEWHERE, ENTRIES, SESSION
from genai_server.options.table import Reach, Row, names

DOCUMENTED: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "documented.toml").read_text(encoding="utf-8")
)
LIBRARIES = ("onnxruntime", "onnxruntime_genai")
LIBRARY = re.compile(r"\.(so(\.[0-9.]+)?|dll|dylib|pyd)$")
# Values that an option of each kind accepts, and one that it refuses.
VALUES: dict[str, tuple[list[Any], Any]] = {
    "flags": ([True, False, "1", "0"], "perhaps"),
    "numbers": ([1], "many"),
    "texts": (["x"], ""),
    "shapes": (["input1:1x2,input2:3"], "wr:ong"),
}


def documented(provider: str) -> dict[str, tuple[list[Any], Any]]:
    """The options of a provider's page: values that each accepts, and one that it refuses."""
    page = DOCUMENTED[provider]
    found = {name: values for kind, values in VALUES.items() for name in page.get(kind, ())}
    return found | {name: (values, "wr:ong") for name, values in page.get("choices", {}).items()}


def elsewhere(provider: str) -> set[str]:
    """The options that are not on a provider's page."""
    page = DOCUMENTED[provider]
    found = {name for names in page.get("elsewhere", {}).values() for name in names}
    return found.union(page.get("binary", ()), page.get("unproved", ()))


def fault(section: str, key: str, value: Any, device: str) -> str:
    """The error for an option's value, or ""."""
    entry = {key: value}
    try:
        check_device({"session": entry} if section == "session" else {"provider": {section: entry}}, device)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("provider", sorted(PROVIDERS.keys() - {"cpu"}))
def test_each_provider_option_is_accepted_and_checked(provider: str) -> None:
    page, wrong = DOCUMENTED[provider], []
    for name, (good, bad) in documented(provider).items():
        wrong += [said for value in good if (said := fault(provider, name, value, provider))]
        if "expected " not in (said := fault(provider, name, bad, provider)):
            wrong.append(f"{name}={bad!r}: {said or 'taken'}")
    for name in page.get("addresses", ()):
        if "an address inside a program" not in (said := fault(provider, name, 1, provider)):
            wrong.append(f"{name}: {said or 'taken'}")
    assert wrong == []
    known = {*documented(provider), *page.get("addresses", ()), *elsewhere(provider)}
    assert names(PROVIDERS[provider].rows).keys() ^ known == set()


@pytest.mark.parametrize("provider", sorted(PROVIDERS.keys() - {"cpu"}))
def test_an_option_that_no_page_has_is_checked_too(provider: str) -> None:
    rows = names(PROVIDERS[provider].rows)
    for name in elsewhere(provider):
        said = fault(provider, name, "" if rows[name].kind.expected == "a text" else "wr:ong", provider)
        assert (rows[name].impossible or "expected ") in said, name


def test_options_that_no_document_has_are_in_the_libraries() -> None:
    folders = [spec.origin for name in LIBRARIES if (spec := find_spec(name)) is not None and spec.origin is not None]
    files = [file for folder in folders for file in Path(folder).parent.rglob("*") if LIBRARY.search(file.name)]
    if len(folders) < len(LIBRARIES):
        pytest.skip(f"{' and '.join(LIBRARIES)} are not installed")
    wanted = {name for page in DOCUMENTED.values() for name in page.get("binary", ())}
    strings = b"".join(file.read_bytes() for file in files)
    assert {name for name in wanted if b"\0" + name.encode() + b"\0" not in strings} == set()


def session_example(row: Row) -> Any:
    """A value that a row of the session options accepts."""
    for value in (1, "cpu:0", "sequential", "all"):
        try:
            row.kind.text(value)
        except ValueError:
            continue
        return value
    raise AssertionError(row)


def test_each_session_option_is_accepted_and_checked() -> None:
    wrong = []
    for name, row in names((*SESSION, *ENTRIES)).items():
        good = session_example(row)
        said = fault("session", name, good, "cpu")
        if row.impossible:
            wrong += [] if "it cannot be set: " in said else [f"{name}: {said or 'taken'}"]
            continue
        bad = "" if row.kind.expected in ("a text", "a single value, passed on as it is") else "wr:ong"
        if said or "expected " not in fault("session", name, bad, "cpu"):
            wrong.append(f"{name}: {said or 'any value is taken'}")
            continue
        options = check_device({"session": {name: good}}, "cpu")
        if list(options.session | options.entries) != list(row.options(row.kind.text(good))):
            wrong.append(f"{name}: {options}")
    assert wrong == []


def test_session_option_names_exist_in_onnx_runtime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    fields = {"level", "global_thread_pool"}  # Triton's, and the environment's
    assert [row.name for row in SESSION if not hasattr(onnxruntime.SessionOptions, row.name)] == sorted(
        fields, reverse=True
    )
    libraries = [*Path(onnxruntime.__file__).parent.glob("capi/*onnxruntime*.*")]
    # Each entry that the library reads is a separate string in it.
    code = b"".join(path.read_bytes() for path in libraries if path.suffix != ".py")
    assert [row.name for row in ENTRIES if row.name.encode() + b"\0" not in code] == []


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        (
            "graph_optimization_level",
            {0: "disabled", 1: "basic", 2: "extended", 99: "all", "ORT_ENABLE_BASIC": "basic"},
        ),
        ("level", {-1: "basic", 0: "all", 1: "extended", 2: "disabled", "2": "disabled", 3: "all", "99": "all"}),
    ],
)
def test_tritons_levels_are_not_onnx_runtimes(name: str, levels: dict[Any, str]) -> None:
    found = {value: check_device({"session": {name: value}}, "cpu").session for value in levels}
    assert found == {value: {"graph_optimization_level": level} for value, level in levels.items()}


@pytest.mark.parametrize(
    ("value", "options"),
    [("FP32", {})] + [(mode, {f"trt_{mode.lower()}_enable": "1"}) for mode in ("fp16", "BF16", "INT8")],
)
def test_a_precision_mode_is_a_switch_of_tensorrt(value: str, options: dict[str, str]) -> None:
    found = check_device({"provider": {"tensorrt": {"precision_mode": value}}}, "tensorrt")
    assert found.providers[0].options == options


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"session": {"intra_op_num_thread": 2}},
            r"\[session\] intra_op_num_thread=2: unknown option; did you mean intra_op_num_threads\?",
        ),
        ({"session": {"allow_spinning": 2}}, r"did you mean session.int.*allow_spinning\?"),
        ({"session": {"session": {"intra_op": {"alow_spinning": 0}}}}, "did you mean session.intra_op.allow_spinning"),
        (
            {"session": {"graph_optimization_level": 3}},
            r"expected one of disabled, basic, extended, all \(or 0, 1, 2, 99,",
        ),
        ({"session": {"graph_optimization_level": -1}}, "expected one of disabled, basic, extended, all"),
        ({"session": {"level": "high"}}, r"\[session\] level=\"high\": expected a whole number"),
        ({"session": {"level": 1, "graph_optimization_level": 2}}, "graph_optimization_level is given twice"),
        ({"session": {"execution_mode": "paralel"}}, "expected one of sequential, parallel"),
        ({"session": {"level": 1, "graph_optimization_level": "all"}}, "given twice"),
        ({"session": 3}, r"\[session\]: expected a table"),
        ({"session": {"custom_op_libraries": "a.so"}}, "expected a list of paths"),
        (
            {"session": {"enable_mem_arena": 0, "memory": {"enable_memory_arena_shrinkage": "cpu:0"}}},
            "without enable_cpu_mem_arena there is nothing to shrink",
        ),
        ({"session": {"gpu_mem_limit": 5}}, "it is an option of cuda, not of cpu"),
        ({"provider": {"cuda": {"gpu_memory_limit": 5}}}, r"\[provider.cuda\] .* did you mean gpu_mem_limit\?"),
        ({"provider": {"cpu": {"threads": 5}}}, "cpu has no options of its own"),
        ({"provider": {"tensort": {}}}, r"unknown provider; did you mean tensorrt\?"),
        (
            {"provider": {"tensorrt": {"precision_mode": "FP16", "trt_fp16_enable": 0}}},
            "trt_fp16_enable is given twice",
        ),
        ({"providers": ["cpu", "openvino"]}, "cpu must be last"),
        ({"providers": ["openvino", "openvino"]}, "named twice"),
        ({"providers": ["openvno"]}, r"openvno is unknown, .*did you mean openvino\?"),
        ({"providers": "openvino"}, "expected a list of names"),
    ],
)
def test_invalid_option_is_refused_with_the_nearest_name(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_device(sections, "cpu")


def test_providers_without_the_devices_own_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="cuda is missing, and device cuda:1 runs on it"):
        check_device({"providers": ["tensorrt"]}, "cuda:1")


@pytest.mark.parametrize("name", ["enable_profiling", "session.enable_profiling"])
def test_session_profiling_is_refused_with_the_alternatives(name: str) -> None:
    message = fault("session", name, "p", "cpu")
    assert ("/v1/admin/runtime_options" in message, "genai_config.json" in message) == (True, True)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cudnn_conv_algo_search", "1", "HEURISTIC"),
        ("arena_extend_strategy", 1, "kSameAsRequested"),
        ("gpu_mem_limit", "4294967200", "4294967200"),
        ("do_copy_in_default_stream", 0, "0"),
    ],
)
def test_a_deprecated_option_of_cuda_is_taken_with_a_warning(key: str, value: Any, expected: str) -> None:
    options = check_device({"session": {key: value}}, "cuda")
    assert options.providers[0].options == {key: expected}
    assert options.warnings == [f"[session] {key} is deprecated: write it in [provider.cuda]"]


def test_option_without_effect_gets_a_warning() -> None:
    assert "no effect" in check_device({"session": {"inter_op_num_threads": 2}}, "cpu").warnings[0]
    parallel = {"inter_op_num_threads": 2, "execution_mode": 1}
    assert check_device({"session": parallel}, "cpu").warnings == []


@pytest.mark.parametrize(
    ("device", "sections", "order"),
    [
        ("cpu", {}, []),
        ("cuda", {}, ["cuda"]),
        ("tensorrt", {}, ["tensorrt", "cuda"]),
        ("cuda", {"providers": ["tensorrt", "cuda", "cpu"]}, ["tensorrt", "cuda"]),
    ],
)
def test_a_device_is_on_its_own_provider_unless_others_are_named(
    device: str, sections: dict[str, Any], order: list[str]
) -> None:
    assert [given.name for given in check_device(sections, device).providers] == order


def test_a_devices_number_is_its_providers() -> None:
    options = check_device({"providers": ["tensorrt", "cuda"]}, "cuda:2")
    assert [given.options for given in options.providers] == [{"device_id": "2"}, {"device_id": "2"}]
    with pytest.raises(ConfigurationError, match="the device's is 2"):
        check_device({"provider": {"cuda": {"device_id": 1}}}, "cuda:2")


def test_a_provider_from_outside_takes_any_option() -> None:
    sections = {"providers": ["Mine"], "provider": {"Mine": {"library": "mine.so", "speed": 3}}}
    (mine,) = check_device(sections, "cpu").providers
    assert (mine.name, mine.library, mine.options) == ("Mine", "mine.so", {"speed": "3"})


@pytest.mark.parametrize(
    ("sections", "device", "runner", "message"),
    [
        ({"session": {"execution_mode": 1}}, "cpu", Reach.GENERATOR, "execution_mode reaches only the batched session"),
        ({"session": {"global_thread_pool": 1}}, "cpu", Reach.GENERATOR, "global_thread_pool reaches only"),
        ({}, "tensorrt", Reach.GENERATOR, "provider tensorrt reaches only the batched session"),
        (
            {"provider": {"cuda": {"max_mem": 1}}},
            "cuda",
            Reach.BATCHED,
            "max_mem reaches only onnxruntime-genai's model",
        ),
        (
            {"provider": {"cuda": {"enable_cuda_graph": 1}}},
            "cuda",
            Reach.BATCHED,
            "enable_cuda_graph reaches only onnxruntime-genai's model: a captured graph is replayed with the same",
        ),
        (
            {"provider": {"tensorrt": {"trt_cuda_graph_enable": 1}}},
            "tensorrt",
            Reach.BATCHED,
            "trt_cuda_graph_enable reaches only onnxruntime-genai's model: a captured graph is replayed with the same",
        ),
        ({"provider": {"cuda": {"enable_cuda_graph": 1}}}, "cuda", Reach.GENERATOR, None),
        ({"session": {"execution_mode": 1}}, "cpu", Reach.BATCHED, None),
        ({"session": {"intra_op_num_threads": 1}}, "cpu", Reach.GENERATOR, None),
    ],
)
def test_an_option_that_does_not_reach_a_runner_is_found(
    sections: dict[str, Any], device: str, runner: Reach, message: str | None
) -> None:
    options = check_device(sections, device)
    found = unreachable(options, runner)
    assert (message in found) if message and found else found is message
    assert unreachable(reaching(options, runner), runner) is None


@pytest.mark.parametrize("section", ["session", "cuda"])
def test_cuda_graph_options_of_the_plugin_are_explained(section: str) -> None:
    prefix = "ep.cudapluginexecutionprovider"
    runs = fault(section, f"{prefix}.min_num_runs_before_cuda_graph_capture", 2, "cuda")
    assert "it cannot be set" in runs
    assert "write enable_cuda_graph in [provider.cuda]" in runs
    graph = fault(section, f"{prefix}.enable_cuda_graph", True, "cuda")
    assert graph.endswith("write enable_cuda_graph in [provider.cuda] instead" if section == "session" else "")


def test_the_plugins_name_of_cuda_graphs_is_an_option_of_cuda() -> None:
    given = {"ep": {"cudapluginexecutionprovider": {"enable_cuda_graph": True}}}
    found = check_device({"provider": {"cuda": given}}, "cuda")
    assert found.providers[0].options == {"enable_cuda_graph": "1"}


IMPOSSIBLE = [row.name for row in (*ENTRIES, *ELSEWHERE, *PROVIDERS["cuda"].rows) if row.impossible]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_no_message_suggests_an_option_that_is_refused(name: str) -> None:
    section = "cuda" if name in names(PROVIDERS["cuda"].rows) else "session"
    bare = name.rpartition(".")[2]
    for wrong in (bare, name + "s", bare[:-1], f"session.{bare}"):
        _, _, suggestion = fault(section, wrong, "1", "cuda").partition("did you mean ")
        assert "cannot be set" not in (fault(section, suggestion.removesuffix("?"), "1", "cuda") if suggestion else "")


def test_threads_stop_spinning_unless_the_operator_wants_it() -> None:
    stop = "session.force_spinning_stop"
    assert without_spinning_between_passes(DeviceOptions(entries={"a": "b"})).entries == {"a": "b", stop: "1"}
    assert without_spinning_between_passes(DeviceOptions(entries={stop: "0"})).entries == {stop: "0"}
