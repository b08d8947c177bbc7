"""A device's options: names that are known, values that fit, and what reaches which runner."""

from typing import Any

import pytest

from genai_server.errors import ConfigurationError
from genai_server.options.check import check_device
from genai_server.options.device import reaching, unreachable
from genai_server.options.providers import PROVIDERS
from genai_server.options.session import ENTRIES, SESSION
from genai_server.options.table import Reach, Row


def example(row: Row) -> Any:
    """A value that a row takes."""
    for value in (1, "FP16", "kSameAsRequested", "sequential", "all", "EXHAUSTIVE", "in:1x1", "cpu:0", "CPU", "high"):
        try:
            row.kind.text(value)
        except ValueError:
            continue
        return value
    return row.kind.expected.removeprefix("one of ").split(",")[0]


def wrong(row: Row) -> Any:
    """A value that it does not take; a text, and what is passed on, takes anything but nothing."""
    return "" if row.kind.expected in ("a text", "one value, passed on as it is") else "wr:ong"


PROVIDER_ROWS = [
    pytest.param(name, row, spelled, id=f"{name}-{spelled}")
    for name, known in PROVIDERS.items()
    for row in known.rows
    for spelled in (row.name, *row.also)
]


@pytest.mark.parametrize(("provider", "row", "spelled"), PROVIDER_ROWS)
def test_each_option_of_a_provider_is_taken_under_its_names_and_its_value_checked(
    provider: str, row: Row, spelled: str
) -> None:
    sections = {"provider": {provider: {spelled: example(row)}}}
    if row.impossible:
        with pytest.raises(ConfigurationError, match=rf"\[provider.{provider}\] {spelled}=.*{row.impossible}"):
            check_device(sections, provider)
        return
    found = check_device(sections, provider).providers[0].options
    assert found.keys() == (row.means[row.kind.text(example(row))].keys() if row.means else {row.name})
    with pytest.raises(ConfigurationError, match=rf"\[provider.{provider}\] {spelled}=.*expected is"):
        check_device({"provider": {provider: {spelled: wrong(row)}}}, provider)


SESSION_ROWS = [
    pytest.param(row, spelled, id=spelled) for row in (*SESSION, *ENTRIES) for spelled in (row.name, *row.also)
]


@pytest.mark.parametrize(("row", "spelled"), SESSION_ROWS)
def test_each_option_of_a_session_is_taken_under_its_names_and_its_value_checked(row: Row, spelled: str) -> None:
    if row.impossible:
        with pytest.raises(ConfigurationError, match="it cannot be set: "):
            check_device({"session": {spelled: example(row)}}, "cpu")
        return
    options = check_device({"session": {spelled: example(row)}}, "cpu")
    assert list(options.session | options.entries) == [row.name]
    with pytest.raises(ConfigurationError, match=r"\[session\] .*expected is"):
        check_device({"session": {spelled: wrong(row)}}, "cpu")


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ("FP32", {}),
        ("fp16", {"trt_fp16_enable": "1"}),
        ("BF16", {"trt_bf16_enable": "1"}),
        ("INT8", {"trt_int8_enable": "1"}),
    ],
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
        ({"session": {"graph_optimization_level": 99}}, "expected is one of disabled, basic, extended, all"),
        ({"session": {"execution_mode": "paralel"}}, "expected is one of sequential, parallel"),
        ({"session": {"level": 1, "graph_optimization_level": "all"}}, "given twice"),
        ({"session": 3}, r"\[session\]: expected is a table"),
        ({"session": {"custom_op_libraries": "a.so"}}, "expected is a list of paths"),
        (
            {"session": {"enable_mem_arena": 0, "memory": {"enable_memory_arena_shrinkage": "cpu:0"}}},
            "without enable_cpu_mem_arena none can shrink",
        ),
        ({"session": {"gpu_mem_limit": 5}}, "it is an option of cuda, not of cpu"),
        ({"provider": {"cuda": {"gpu_memory_limit": 5}}}, r"\[provider.cuda\] .* did you mean gpu_mem_limit\?"),
        ({"provider": {"cpu": {"threads": 5}}}, "cpu has no options of its own"),
        ({"provider": {"tensort": {}}}, r"unknown provider; did you mean tensorrt\?"),
        (
            {"provider": {"tensorrt": {"precision_mode": "FP16", "trt_fp16_enable": 0}}},
            "trt_fp16_enable is given twice",
        ),
        ({"providers": ["cpu", "openvino"]}, "cpu must be the last"),
        ({"providers": ["openvino", "openvino"]}, "named twice"),
        ({"providers": ["openvno"]}, r"openvno is unknown, .*did you mean openvino\?"),
        ({"providers": "openvino"}, "expected is a list of names"),
    ],
)
def test_what_is_wrong_is_refused_with_section_key_value_and_the_nearest_name(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_device(sections, "cpu")


def test_providers_without_the_devices_own_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="cuda is missing, and device cuda:1 is on it"):
        check_device({"providers": ["tensorrt"]}, "cuda:1")


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


def test_an_option_without_effect_is_warned_of() -> None:
    assert "no effect" in check_device({"session": {"inter_op_num_threads": 2}}, "cpu").warnings[0]
    parallel = {"inter_op_num_threads": 2, "execution_mode": 1}
    assert check_device({"session": parallel}, "cpu").warnings == []


def test_a_device_is_on_its_own_provider_unless_others_are_named() -> None:
    def order(device: str, **sections: Any) -> list[str]:
        return [given.name for given in check_device(sections, device).providers]

    assert order("cpu") == []
    assert order("cuda") == ["cuda"]
    assert order("tensorrt") == ["tensorrt", "cuda"]
    assert order("cuda", providers=["tensorrt", "cuda", "cpu"]) == ["tensorrt", "cuda"]


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
            "enable_cuda_graph reaches only onnxruntime-genai's model",
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
