"""Each option reaches both libraries: read back where they report it, observed by its effect where they do not."""

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import onnx
import onnxruntime
import onnxruntime_genai
import psutil
import pytest

from genai_server.engine.model import session_options as module
from genai_server.engine.model.session_options import (
    config_entries,
    configure_providers,
    genai_overlay,
    how_to_get,
    library_of,
    missing_device,
    newer_directml,
    node_shares,
    open_with,
    session_options,
    with_found_libraries,
)
from genai_server.errors import ConfigurationError
from genai_server.options.device import DeviceOptions, ProviderOptions, check_device
from genai_server.options.session import ENTRIES, SPINNING_STOP
from genai_server.system.resources import usable_cores
from tests.running_server import DEMO

MODEL = DEMO / "model.onnx"
UNSIGNED_WEIGHTS = "session.x64quantprecision"


def checked(**session: Any) -> DeviceOptions:
    return check_device({"session": session}, "cpu")


LEVELS, MODES = onnxruntime.GraphOptimizationLevel, onnxruntime.ExecutionMode


@pytest.mark.parametrize(
    ("given", "attribute", "expected"),
    [
        ({"intra_op_num_threads": 3}, "intra_op_num_threads", 3),
        ({}, "intra_op_num_threads", usable_cores()),
        ({"inter_op_num_threads": 2}, "inter_op_num_threads", 2),
        ({"execution_mode": "parallel"}, "execution_mode", MODES.ORT_PARALLEL),
        ({"execution_mode": 0}, "execution_mode", MODES.ORT_SEQUENTIAL),
        *(
            ({"graph_optimization_level": given}, "graph_optimization_level", level)
            for name, number, level in (
                ("disabled", 0, LEVELS.ORT_DISABLE_ALL),
                ("basic", 1, LEVELS.ORT_ENABLE_BASIC),
                ("extended", 2, LEVELS.ORT_ENABLE_EXTENDED),
                ("all", 99, LEVELS.ORT_ENABLE_ALL),
            )
            for given in (name, number)
        ),
        ({"level": -1}, "graph_optimization_level", LEVELS.ORT_ENABLE_BASIC),
        ({"level": 1}, "graph_optimization_level", LEVELS.ORT_ENABLE_EXTENDED),
        ({"level": 2}, "graph_optimization_level", LEVELS.ORT_DISABLE_ALL),
        ({"enable_mem_arena": 0}, "enable_cpu_mem_arena", False),
        ({"enable_mem_pattern": False}, "enable_mem_pattern", False),
        ({"global_thread_pool": True}, "use_per_session_threads", False),
    ],
)
def test_an_option_is_a_field_of_the_batched_session(given: dict[str, Any], attribute: str, expected: Any) -> None:
    assert getattr(session_options(checked(**given), 0), attribute) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("session.intra_op.allow_spinning", True, "1"),
        ("session.inter_op.allow_spinning", True, "1"),
        ("session.use_device_allocator_for_initializers", True, "1"),
        ("session.set_denormal_as_zero", True, "1"),
        (UNSIGNED_WEIGHTS, 0, "0"),
        (UNSIGNED_WEIGHTS, 1, "1"),
    ],
)
def test_an_entry_is_added_to_both_sessions(name: str, value: object, expected: str) -> None:
    options = checked(**{name: value})
    assert session_options(options, 0).get_session_config_entry(name) == expected
    assert genai_overlay(options, 0)["session_options"][name] == expected


# For options that are neither numbers nor switches, a value that this library accepts on a CPU.
TEXTS = {
    "session.intra_op_thread_affinities": "1",
    "session.layer_assignment_settings": "cpu(1)",
    "session.name_based_layer_assignment": "cpu(1)",
    "session.resource_cuda_partitioning_settings": ",",
    "session.node_partition_config_file": "none.csv",
    "session.collect_node_memory_stats_to_file": "none.csv",
    "session.max_shape_override": "input_ids:[1,8]",
}
# Their effect is that a model without it is refused.
CPU_ALONE = "session.disable_cpu_ep_fallback"
EXPERTS = (
    "session.moe_expert_counter_alpha",
    "session.moe_expert_counter_beta",
    "session.moe_expert_counter_state_file",
)
POSSIBLE = [row.name for row in ENTRIES if not row.impossible]


def with_entry(name: str) -> DeviceOptions:
    value = TEXTS.get(name, next((v for v in (1, True) if can_be(name, v)), "none"))
    return checked(**{name: value, "intra_op_num_threads": 2})


def can_be(name: str, value: Any) -> bool:
    try:
        checked(**{name: value})
    except ConfigurationError:
        return False
    return True


def generator_config(options: DeviceOptions) -> Any:
    """The demo model's configuration in onnxruntime-genai with these options."""
    config = onnxruntime_genai.Config(str(DEMO))
    config.overlay(json.dumps({"model": {"decoder": genai_overlay(options, 0)}}))
    configure_providers(onnxruntime_genai, config, options)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in POSSIBLE if name not in (CPU_ALONE, *EXPERTS)])
def test_both_runtimes_open_a_model_with_an_entry(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one of the options writes a file
    options = with_entry(name)
    batched = open_with(MODEL, session_options(options, 0), options)
    assert batched.get_session_options().get_session_config_entry(name)
    assert onnxruntime_genai.Model(generator_config(options)).device_type == "CPU"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (CPU_ALONE, "disabled fallback to the CPU EP"),
        *((name, f"{name} requires expert counting") for name in EXPERTS),
    ],
)
def test_entries_that_do_not_suit_the_model_are_refused(name: str, message: str) -> None:
    options = with_entry(name)
    with pytest.raises(Exception, match=message):
        open_with(MODEL, session_options(options, 0), options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"intra_op_thread_count": 3}, {"intra_op_num_threads": 3}),
        ({"inter_op_thread_count": 2}, {"inter_op_num_threads": 2}),
        ({"level": -1}, {"graph_optimization_level": "ORT_ENABLE_BASIC"}),
        ({"enable_mem_arena": 0}, {"enable_cpu_mem_arena": False}),
        ({"enable_mem_pattern": 1}, {"enable_mem_pattern": True}),
        ({"custom_op_libraries": ["ops.so"]}, {"custom_ops_library": "ops.so"}),
    ],
)
def test_option_is_added_to_the_overlay_of_onnxruntime_genai(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = genai_overlay(checked(**given), 0)["session_options"]
    for default in (UNSIGNED_WEIGHTS, SPINNING_STOP):
        found.pop(default, None)
    assert found == {"intra_op_num_threads": usable_cores()} | expected


@pytest.mark.parametrize("overflow", [True, False])
def test_weights_are_unsigned_only_where_products_overflow(overflow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_vnni", lambda: not overflow)
    assert config_entries(checked(), 0).get(UNSIGNED_WEIGHTS) == ("1" if overflow else None)


@pytest.mark.parametrize(("cpus", "threads", "stops"), [(2, 2, "1"), (2, 3, "1"), (3, 2, None)])
def test_threads_on_all_cpus_do_not_spin_between_passes(
    cpus: int, threads: int, stops: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "usable_cpus", lambda: cpus)
    assert config_entries(checked(), threads).get(SPINNING_STOP) == stops
    assert genai_overlay(checked(), threads)["session_options"].get(SPINNING_STOP) == stops
    assert config_entries(checked(intra_op_num_threads=1), threads).get(SPINNING_STOP) is None
    found = session_options(checked(**{SPINNING_STOP: 0}), threads)
    assert found.get_session_config_entry(SPINNING_STOP) == "0"


def test_arena_shrinkage_is_an_option_of_every_pass() -> None:
    options = checked(**{"memory.enable_memory_arena_shrinkage": "cpu:0"})
    assert genai_overlay(options, 0)["run_options"] == {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    assert options.run == {"memory.enable_memory_arena_shrinkage": "cpu:0"}


def test_onnxruntime_genai_accepts_the_overlay_and_its_threads() -> None:
    def more_threads(number: int) -> int:
        given = {
            "intra_op_num_threads": number,
            "inter_op_num_threads": 1,
            "level": 1,
            "enable_mem_arena": 0,
            "enable_mem_pattern": 0,
            "session.intra_op.allow_spinning": 0,
            "memory.enable_memory_arena_shrinkage": "gpu:0",
        }
        config, before = generator_config(checked(**given)), psutil.Process().num_threads()
        model = onnxruntime_genai.Model(config)
        more = psutil.Process().num_threads() - before
        assert model.device_type == "CPU"
        return more

    more_threads(1)  # the library's first model starts threads of its own
    assert more_threads(4) - more_threads(1) == 3


def test_a_library_of_operators_that_cannot_be_used_is_named() -> None:
    with pytest.raises(ConfigurationError, match="takes only one"):
        genai_overlay(checked(custom_op_libraries=["a.so", "b.so"]), 0)
    with pytest.raises(ConfigurationError, match=r"\[session\] custom_op_libraries: /none/ops.so: .*cannot open"):
        session_options(checked(custom_op_libraries=["/none/ops.so"]), 0)


def test_a_library_of_operators_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"none.so: there is no such file, neither in {tmp_path} nor"):
        with_found_libraries(checked(custom_op_libraries=["none.so"]), tmp_path)
    (tmp_path / "some.so").touch()
    found = with_found_libraries(checked(custom_op_libraries=["some.so"]), tmp_path)
    assert found.custom_op_libraries == [str(tmp_path / "some.so")]


def test_the_share_of_each_provider_is_counted_in_nodes() -> None:
    shares = node_shares(open_with(MODEL, session_options(checked(), 0), checked()))
    nodes = len(onnx.load(MODEL, load_external_data=False).graph.node)
    assert list(shares) == ["cpu"]
    assert 0.9 * nodes < shares["cpu"] <= nodes  # a few are folded earlier


def test_a_provider_from_a_library_that_is_missing_or_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        library_of(ProviderOptions("qnn", library=str(tmp_path / "none.so")))
    with pytest.raises(ConfigurationError, match=r'\[provider.qnn\] package="no_such_package": No module named'):
        library_of(ProviderOptions("qnn", package="no_such_package"))
    (tmp_path / "text.so").write_text("no library", encoding="utf-8")
    options = DeviceOptions(providers=[ProviderOptions("Mine", library=str(tmp_path / "text.so"))])
    with pytest.raises(ConfigurationError, match=r"\[provider.Mine\] .*text.so: "):
        open_with(MODEL, session_options(options, 0), options)


CUDA_BEHIND_OPENVINO = {"providers": ["openvino", "cuda", "cpu"], "provider": {"cuda": {"gpu_mem_limit": 9}}}


@pytest.mark.parametrize(
    ("device", "sections", "calls"),
    [
        ("cuda", {}, [call.append_provider("cuda")]),
        ("directml", {}, [call.append_provider("DML")]),
        ("nv_tensorrt_rtx", {}, [call.append_provider("NvTensorRtRtx")]),
        ("openvino", {}, [call.append_provider("OpenVINO")]),
        ("webgpu", {}, [call.append_provider("WebGPU")]),
        ("qnn", {}, [call.append_provider("QNN")]),
        (
            "cuda:1",
            CUDA_BEHIND_OPENVINO,
            [
                call.append_provider("OpenVINO"),
                call.append_provider("cuda"),
                call.set_provider_option("cuda", "gpu_mem_limit", "9"),
                call.set_provider_option("cuda", "device_id", "1"),
            ],
        ),
    ],
)
def test_onnxruntime_genai_gets_its_own_names_of_providers_in_order_with_their_options(
    device: str, sections: dict[str, Any], calls: list[Any]
) -> None:
    config = Mock()
    configure_providers(None, config, check_device(sections, device))
    assert config.mock_calls == [call.clear_providers(), *calls]


def test_a_provider_that_finds_no_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As OpenVINO does on a processor that it does not know."""
    sections = {"providers": ["openvino", "cpu"], "provider": {"openvino": {"package": "any"}}}
    options = check_device(sections, "cpu")
    monkeypatch.setattr(module, "register", lambda *_: None)
    words = "provider openvino: its library finds no suitable device on this machine"
    assert (missing_device(options) or "").startswith(words)
    with pytest.raises(ConfigurationError, match=words):
        open_with(MODEL, session_options(options, 0), options)
    assert missing_device(checked()) is None


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"providers": ["cuda"]}, "has no CUDAExecutionProvider; .*; the extra cuda has it: .*cuda"),
        (
            {"providers": ["openvino", "cpu"]},
            "has no OpenVINOExecutionProvider; .*pip install onnxruntime-ep-openvino, "
            r'and write package = "onnxruntime_ep_openvino" in \[provider.openvino\]',
        ),
    ],
)
def test_a_provider_that_is_not_installed_is_refused_with_what_to_install(
    sections: dict[str, Any], message: str
) -> None:
    options = check_device(sections, "cpu")
    with pytest.raises(ConfigurationError, match=message):
        open_with(MODEL, session_options(options, 0), options)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions of the installed packages, which a test fills in."""
    found: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


def test_extra_with_cuda_is_named_unless_it_is_installed(installed: dict[str, str]) -> None:
    assert re.match("; the extra cuda has it: .*cuda", how_to_get("cuda"))
    installed["onnxruntime-genai-cuda"] = "0.18.0"
    assert how_to_get("cuda") == ""


def test_directml_is_had_by_winml(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert how_to_get("directml") == "; DirectML is for Windows only"
    monkeypatch.setattr(sys, "platform", "win32")
    assert how_to_get("directml").startswith("; the extra winml has it: ")
    assert newer_directml() == ""
    installed["onnxruntime-genai-directml"] = "0.13.1"
    words = "; onnxruntime-genai-directml 0.13.1 is the last of its kind, the extra winml has today's library: "
    assert newer_directml().startswith(words)
