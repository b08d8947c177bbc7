"""What an engine process loads; its use is tested with the supervisor and the server."""

import re
import shutil
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import onnx
import pytest
from _models.driven import Driven

from genai_server.config.settings import Settings
from genai_server.config.sources import engine_spec
from genai_server.engine import host, process
from genai_server.engine.encoder_worker import AudioWorker
from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.paged_attention import BLOCK_TOKENS
from genai_server.engine.kv_cache import buffers, paged_buffers
from genai_server.engine.kv_cache.buffers import CpuBuffers, page_tokens
from genai_server.engine.kv_cache.paged_buffers import MemoryDevice
from genai_server.engine.model import graph_reader as graph_module
from genai_server.engine.model import native_library, session, session_options
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.graph_reader import read_decoder_graph
from genai_server.engine.runners import batched as batched_module
from genai_server.engine.runners import load_model
from genai_server.engine.runners.batched import BatchedRunner, DecoderSession
from genai_server.engine.runners.load_model import load_batched
from genai_server.engine.runners.loaded_model import LoadedModel, warm_up
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scripted import ScriptedRunner
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.sequence import Sequence
from genai_server.errors import ConfigurationError, ModelDirectoryError, QueueFull, RunnerFailed
from genai_server.messages.admin import SetRuntimeOption
from genai_server.messages.generation_request import Adapter, GenerationRequest
from genai_server.messages.launch import EngineSpec
from genai_server.model_files.speech_and_vision import FEATURES
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions, check_device
from tests.engine.model_runners import greedy, library_answer
from tests.engine.paged_operator import open_expanded
from tests.model_edits import model_in_folders
from tests.running_server import DEMO, ROOT, run_python
from tests.stepped_loop import SteppedLoop

SPEECH = ROOT / "tests" / "built_models" / "whisper"
PROMPT = [1, 57, 301, 44, 18, 902, 77, 5]


def spec(
    max_length: int,
    *,
    device: str = "cpu",
    model_dir: object = DEMO,
    options: DeviceOptions | None = None,
    **settings: Any,
) -> EngineSpec:
    """An engine with four slots and without packed weights, apart from these settings."""
    given = {"max_batch_size": 4, "max_queue": 4, "prefill_chunk": 64, "cache_dir": ""} | settings
    own = engine_spec(Settings.model_validate({}), device, str(model_dir))
    return msgspec.structs.replace(own, max_length=max_length, options=options or DEFAULT_OPTIONS, **given)


def load(max_length: int = 128, **how: Any) -> LoadedModel:
    return load_model.load_model(spec(max_length, **how))


def batch(given: EngineSpec) -> BatchedRunner:
    return load_batched(given, DEMO, check_model_directory(DEMO))


@pytest.mark.parametrize(
    ("slots", "fits", "named"),
    [(9, 4, "GENAI_MAX_BATCH_SIZE lets 4 run"), (3, 3, "GENAI_KV_CACHE_BYTES lets 3 run")],
)
def test_unshared_slots_are_bounded_by_memory_and_named(
    slots: int, fits: int, named: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "can_reserve", lambda *_: False)
    bytes_of_slot = read_decoder_graph(DEMO).bytes_per_token * 128
    given = spec(128, max_queue=0, kv_cache_bytes=slots * bytes_of_slot)
    batched = batch(given)
    assert len(batched.slots.slots) == batched.abilities.max_rows == fits
    memory = batched.abilities.memory
    assert (memory.pages(10**9), memory.num_pages) == (0, 0)
    assert memory.min_bytes == memory.max_bytes == fits * bytes_of_slot
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (fits < 4)
    scheduler = process.make_scheduler(given, LoadedModel(ScriptedRunner(), batched))
    requests = [Sequence(id, (0, id), GenerationRequest("r", [5], 1, 9), lambda: 0.0) for id in range(fits + 1)]
    for request in requests[:fits]:
        scheduler.add(request)
    with pytest.raises(QueueFull, match=named):
        scheduler.add(requests[fits])


def slot_bytes(max_length: int) -> int:
    """The memory of a full-length sequence on a CPU, in bytes of complete pages."""
    graph = read_decoder_graph(DEMO)
    tokens = page_tokens(graph)
    return graph.bytes_per_token * tokens * (1 + max_length // tokens)


@pytest.mark.skipif(sys.platform != "linux", reason="slots share memory on Linux")
@pytest.mark.parametrize(("bytes_", "num_slots", "num_tokens"), [(3.5, 4, 496), (1.25, 3, 176), (1.0, 1, 144)])
def test_shared_slots_always_fit_one_request_of_full_length(bytes_: float, num_slots: int, num_tokens: int) -> None:
    given = spec(128, kv_cache_bytes=int(bytes_ * slot_bytes(128)))
    loaded = LoadedModel(ScriptedRunner(), batch(given))
    assert (loaded.batching.num_slots, loaded.kv_capacity) == (num_slots, num_tokens)
    assert loaded.main.abilities.memory.pages(128) <= loaded.main.abilities.memory.num_pages


def test_a_draft_model_need_not_be_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    draft = Path(shutil.copytree(DEMO, tmp_path / "draft"))
    monkeypatch.setattr(
        batched_module, "_why_not_exact", lambda graph, **_: "it rounds" if graph.path.parent == draft else ""
    )
    loaded = load(256, exact=True, kv_cache_bytes=64 * 1024 * 1024, draft_model=str(draft))
    assert loaded.draft_model is not None
    assert loaded.draft_model.runner.abilities.why_not_exact == "it rounds"
    assert loaded.batching.exact


def test_draft_model_shares_the_memory_for_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, str]] = []
    original = session_options.config_entries

    def noted(options: DeviceOptions, threads: int) -> dict[str, str]:
        entries.append(found := original(options, threads))
        return found

    monkeypatch.setattr(session_options, "config_entries", noted)
    monkeypatch.setattr(session_options, "usable_cpus", lambda: 1000)
    num_bytes = int(8.5 * slot_bytes(128))
    alone = load(kv_cache_bytes=num_bytes)
    assert not any("session.force_spinning_stop" in each for each in entries)
    entries.clear()
    loaded = load(kv_cache_bytes=num_bytes, draft_model=str(DEMO))
    # Threads of one model would take the cores from the other.
    assert {each["session.force_spinning_stop"] for each in entries} == {"1"}
    assert alone.draft_model is None
    assert loaded.draft_model is not None
    assert (loaded.draft_model.name, loaded.draft_model.kv_share) == ("demo", 0.5)
    assert loaded.batching.draft_model == "demo"
    own, draft = loaded.main.abilities.memory, loaded.draft_model.runner.abilities.memory
    assert own.num_pages == draft.num_pages < alone.main.abilities.memory.num_pages
    assert loaded.kv_range[0] >= 2 * slot_bytes(128)
    warm_up(loaded, 64)
    assert own.own_bytes + draft.own_bytes <= loaded.kv_bytes <= num_bytes
    before = own.num_pages
    loaded.resize(loaded.kv_range[0])
    assert own.pages(128) <= own.num_pages == draft.num_pages < before


@pytest.mark.parametrize(
    ("how", "why"),
    [({"scheduler": "generator"}, "GENAI_SCHEDULER is generator"), ({"device": "scripted"}, "it is scripted")],
)
def test_draft_model_without_effect_is_reported(
    how: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(**how, draft_model=str(DEMO)).draft_model is None
    assert f"draft_model={DEMO} has no effect on device {how.get('device', 'cpu')}: {why}" in caplog.text


@pytest.mark.parametrize("how", [{"scheduler": "generator"}, {}], ids=["by the settings", "by the graph"])
def test_draft_model_without_effect_takes_no_memory(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_model, "load_batched", Mock(side_effect=DoesNotFit("of its graph")))
    alone, drafting = (
        load(0, kv_cache_bytes=64 * slot_bytes(128), draft_model=draft, **how) for draft in ("", str(DEMO))
    )
    assert drafting.draft_model is None
    assert drafting.main.abilities.memory.num_pages == alone.main.abilities.memory.num_pages
    assert drafting.main.model.max_length == alone.main.model.max_length


def test_incomplete_model_is_refused(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(DEMO, tmp_path / "broken"))
    (directory / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelDirectoryError, match=r"broken/model\.onnx cannot be read as an ONNX graph: "):
        load(model_dir=directory)
    (directory / "model.onnx").unlink()
    for scheduler in ("auto", "generator"):
        with pytest.raises(ModelDirectoryError, match=r"is incomplete: model\.onnx is missing"):
            load(model_dir=directory, scheduler=scheduler)
    with pytest.raises(ConfigurationError, match=r"draft_model=.*model\.onnx is missing"):
        load(draft_model=str(directory))


@pytest.mark.parametrize(
    ("kind", "requests", "found"),
    [
        ("fp32", 1.5, np.float32),
        ("fp16", 5, np.float16),
        ("int8", 5, np.int8),
        ("auto", 5, np.float32),
        ("auto", 3.5, np.float16),
    ],
)
def test_keys_and_values_have_the_chosen_number_of_bits(kind: str, requests: float, found: type) -> None:
    """The memory holds this number of requests of full length in 32 bits, and up to four run."""
    made = batch(spec(128, kv_cache_bytes=int(requests * slot_bytes(128)), kv_cache_type=kind)).buffers
    assert isinstance(made, CpuBuffers)
    assert {array.dtype for array in made.arrays} == {np.dtype(found)}


def test_kv_cache_too_small_for_one_request_is_refused() -> None:
    most, least = slot_bytes(128) - 1, slot_bytes(128)
    message = (
        rf"GENAI_KV_CACHE_BYTES={most}: at least {least} are needed for a request: .* 128 tokens \(GENAI_MAX_LENGTH"
    )
    with pytest.raises(ConfigurationError, match=message):
        load(kv_cache_bytes=most)
    assert load(kv_cache_bytes=least).batching.num_slots == 1


def test_batch_does_not_fit_without_enough_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.engine.runners.sequence_limits.free_memory", lambda: 2 * slot_bytes(128) - 2)
    with pytest.raises(DoesNotFit, match=r"need \d+ bytes, half of the free memory is \d+"):
        batch(spec(128))


@pytest.mark.parametrize(
    ("where", "name", "failure", "reason"),
    [
        (DecoderSession, "run", RunnerFailed("onnxruntime: shapes differ"), "onnxruntime: shapes differ"),
        (
            session,
            "open_with",
            ValueError("Node (x) has input size 3 not in range"),
            "its graph for a batch cannot be loaded: ValueError: Node (x) has input size 3 not in range",
        ),
    ],
    ids=["first pass", "session"],
)
def test_a_batch_that_fails_falls_back_unless_batching_is_set(
    where: Any, name: str, failure: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, Mock(side_effect=failure))
    loaded = load()
    assert loaded.batch is None
    assert loaded.batching.reason is not None
    assert loaded.batching.reason.endswith(reason)
    with pytest.raises(ConfigurationError, match=f"GENAI_SCHEDULER=batched: .*{re.escape(reason)}"):
        load(scheduler="batched")


def test_unreachable_option_is_refused_before_the_model_loads() -> None:
    options = check_device({"session": {"execution_mode": "parallel"}}, "webgpu")
    words = "execution_mode reaches only .* runs on cpu, cuda, tensorrt, not on webgpu"
    with pytest.raises(ConfigurationError, match=words):
        load(device="webgpu", model_dir="/none", options=options)


def test_device_batch_has_its_memory_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device: the session and the memory are the CPU's."""
    opened: list[DeviceOptions] = []

    def on_the_cpu(graph: DecoderGraph, threads: int, *, options: DeviceOptions, **named: Any) -> Any:
        opened.append(options)
        assert named["offers_best"]
        return open_expanded(graph, offers_best=True)

    monkeypatch.setattr(session, "open_session", on_the_cpu)
    made: list[MemoryDevice] = []

    def memory_device(device_type: str, device_id: int, provider: str) -> MemoryDevice:
        made.append(MemoryDevice(device_type, device_id, provider))
        return MemoryDevice("cpu", 0, "CPUExecutionProvider")

    monkeypatch.setattr(paged_buffers, "MemoryDevice", memory_device)
    options = check_device({}, "cuda:1")
    graph = read_decoder_graph(DEMO)
    kv_cache_bytes = 3 * BLOCK_TOKENS * graph.bytes_per_token // 2  # in 16 bits
    runner = batch(spec(128, kv_cache_bytes=kv_cache_bytes, device="cuda:1", options=options))
    assert runner.abilities.max_rows == 3
    assert made == [MemoryDevice("cuda", 1, "CUDAExecutionProvider")]
    assert [provider.name for provider in opened[0].providers] == ["cuda"]
    driven = Driven(runner)
    assert driven.open(1, [1, 2, 3], 64) == 0
    assert driven.prefill(1, [1, 2, 3]).shape == (runner.model.vocab_size,)


def test_failed_batch_frees_its_weights_before_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Any]] = []

    def on_the_cpu(graph: DecoderGraph, *_: object, **__: object) -> Any:
        found = open_expanded(graph, offers_best=True)
        opened.append(weakref.ref(found))
        return found

    def refuse(*_: object) -> None:  # a mock would keep the error, and with it the session
        raise RuntimeError("the device has no memory left")

    alive: list[object] = []

    def generator(given: EngineSpec, model_dir: Path) -> OgGeneratorRunner:
        alive.extend(session() for session in opened)
        return OgGeneratorRunner(model_dir, "cpu", 1)

    monkeypatch.setattr(session, "open_session", on_the_cpu)
    monkeypatch.setattr(paged_buffers, "PagedBuffers", refuse)
    monkeypatch.setattr(load_model, "_generator", generator)
    loaded = load(device="cuda", options=check_device({}, "cuda"))
    assert "the device has no memory left" in (loaded.batching.reason or "")
    assert alive == [None]


def test_warnings_of_the_options_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    load(options=check_device({"session": {"inter_op_num_threads": 2}}, "cpu"))
    assert "inter_op_num_threads has no effect" in caplog.text


def test_the_nodes_of_each_provider_are_counted_for_a_batch_only() -> None:
    nodes = load().batching.nodes
    assert list(nodes) == ["cpu"]
    assert (nodes["cpu"] or 0) > 40
    assert load(scheduler="generator").batching.nodes == {"cpu": None}


def test_a_model_answers_with_options_as_without() -> None:
    """Options of memory and threads, in passes of both runners."""
    many = {
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": True,
        "session.intra_op.allow_spinning": False,
        "enable_mem_pattern": 0,
        "execution_mode": "parallel",
        "inter_op_num_threads": 2,
    }
    found = []
    for chosen in ({}, many, {"enable_mem_arena": 0}):
        given = spec(128, options=check_device({"session": chosen}, "cpu"))
        runners = (load_model.load_model(given).main, load_model._generator(given, DEMO))
        found.append([greedy(runner, PROMPT, 9) for runner in runners])
    assert found[1:] == found[:1] * 2


@pytest.mark.slow
def test_a_global_pool_is_shared_by_all_sessions() -> None:
    """In a separate process, because a process has only one pool."""
    script = """
import sys
import psutil
from genai_server.engine.runners.load_model import load_model
from genai_server.engine.runners.loaded_model import warm_up
from genai_server.options.device import check_device
sys.path.append("scripts")
from tests.engine.runners.test_load_model import spec
import onnxruntime
pool = {"global_thread_pool": True, "intra_op_num_threads": 5}
loaded = load_model(spec(128, options=check_device({"session": pool}, "cpu")))
warm_up(loaded, 64)
before = psutil.Process().num_threads()
options = onnxruntime.SessionOptions()
options.use_per_session_threads, options.intra_op_num_threads = False, 9
session = onnxruntime.InferenceSession("models/demo/model.onnx", options, providers=["CPUExecutionProvider"])
print(psutil.Process().num_threads() - before)
"""
    assert run_python("-c", script).split()[-1] == "0"


@pytest.mark.parametrize(("scheduler", "name", "num_states"), [("auto", "batched", 4), ("generator", "generator", 0)])
def test_a_model_for_speech_is_loaded_once(scheduler: str, name: str, num_states: int) -> None:
    loaded = load(100, model_dir=SPEECH, scheduler=scheduler)
    warm_up(loaded, 16)
    assert loaded.main.abilities.name == name
    is_batched = name == "batched"
    # A batch's own session is profiled.
    assert isinstance(loaded.generator, OgGeneratorRunner) != is_batched
    assert loaded.generator is loaded.main
    assert ("model for speech" in loaded.why_no_profile) != is_batched
    assert isinstance(loaded.encoder, AudioWorker)
    encoded = loaded.encoder._encode({FEATURES: np.zeros((1, 80, 3000), np.float32)})
    # The library encodes by itself.
    assert len(encoded.states) == num_states


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_batch_that_runs_everything_is_loaded_alone(is_adapted: bool, adapted: Path) -> None:
    loaded = load(model_dir=adapted if is_adapted else DEMO)
    assert loaded.generator is loaded.batch is loaded.main
    assert loaded.main.abilities.adapters == is_adapted
    warm_up(loaded, 16)
    assert loaded.why_no_profile == ""


def test_batch_that_cannot_take_the_adapters_has_a_generator(
    adapted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(graph_module, "find_paths", lambda *_: ())  # as if the inputs had another form
    loaded = load(model_dir=adapted)
    assert isinstance(loaded.main, BatchedRunner)
    assert isinstance(loaded.generator, OgGeneratorRunner)
    warm_up(loaded, 16)
    assert loaded.why_no_profile == ""
    adapter = Adapter("lively", str(adapted / "lively.onnx_adapter"), "1")
    device = SteppedLoop(loaded, process.make_scheduler(spec(128), loaded), Guidance(None, 1920), tmp_path)
    device.put(SetRuntimeOption(1, "enable_profiling", "p"))
    for key, each in enumerate((adapter, None)):
        device.put_request(key, PROMPT, max_tokens=4, max_length=64, ignore_eos=True, adapter=each)
        device.run(key)
        assert device.end(key).num_profiled == 4
    assert device.tokens(0) == library_answer(adapted, PROMPT, 4, adapted / "lively.onnx_adapter")


def test_profiles_are_refused_where_passes_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "onnxruntime 1.24.0 has no version 25 of the C API"
    monkeypatch.setattr(batched_module, "check_pass_profiles", Mock(side_effect=RunnerFailed(why)))
    loaded = load()
    warm_up(loaded, 16)
    assert loaded.why_no_profile.endswith(f"cannot do it: {why}")


@pytest.mark.parametrize(
    ("weights", "has_vnni", "is_packed"), [("auto", True, True), ("auto", False, False), ("own", True, False)]
)
def test_the_encoder_of_speech_gets_8_bit_weights_where_these_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, has_vnni: bool, is_packed: bool
) -> None:
    monkeypatch.setattr(host, "has_vnni", lambda: has_vnni)
    given = spec(100, model_dir=SPEECH, cache_dir=str(tmp_path / "cache"), encoder_weights=weights)
    found, plain = (load_model._audio_encoder(each, SPEECH) for each in (given, spec(100, model_dir=SPEECH)))
    features = {FEATURES: np.random.default_rng(1).standard_normal((1, 80, 3000)).astype(np.float32)}
    for one, own in zip(found(features).states, plain(features).states, strict=True):
        difference = np.abs(one - own).max() / np.abs(own).max()
        assert 0 < difference < 0.05 if is_packed else difference == 0


def test_the_encoder_runs_as_it_is_without_the_native_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(host, "has_vnni", lambda: True)
    monkeypatch.setattr(native_library, "why_not_native", lambda *_: "its kernels are wrong here")
    encode = load_model._audio_encoder(spec(100, cache_dir=str(tmp_path)), SPEECH)
    assert encode({FEATURES: np.zeros((1, 80, 3000), np.float32)}).states
    assert "the encoder has the model's own weights: its kernels are wrong here" in caplog.text


def test_packed_encoder_is_found_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_vnni", lambda: True)
    model = model_in_folders(tmp_path / "model")
    found = load_model._packed_encoder(spec(100, model_dir=model, cache_dir=str(tmp_path / "cache")), "vision")
    assert found is not None
    assert found.parent.name == "vision"
    assert "PackedMatMul" in {node.op_type for node in onnx.load(found, load_external_data=False).graph.node}
