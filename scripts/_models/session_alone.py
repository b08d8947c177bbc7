"""An engine's loop in a process with a model's batched session but without og.Model, to measure its memory.

Standard input brings the task as JSON: an EngineSpec, and requests. Standard output gets, when all of these are
answered, the process's memory in bytes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
from _load.footprint import footprint

from genai_server.engine.abilities import Abilities
from genai_server.engine.ipc.mailbox import Connected
from genai_server.engine.loop import EngineLoop
from genai_server.engine.model.files import check_model_directory
from genai_server.engine.model.weights import prepacked_model
from genai_server.engine.process import prefill_chunk
from genai_server.engine.profiling.folder import ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.lengths import IDLE_CHUNK
from genai_server.engine.runners.load_batched import load_batched
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.sampling.grammar import model_guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.messages.generation_request import GenerationRequest
from genai_server.messages.launch import EngineSpec
from genai_server.messages.protocol import Submit


def main() -> None:
    spec, requests = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[EngineSpec, list[GenerationRequest]])
    loaded = load(spec)
    answer(spec, loaded, requests)
    print(footprint(os.getpid()).pss)


def load(spec: EngineSpec) -> LoadedModel:
    """The batched runner as in an engine; in the generator's place something that only knows the model."""
    cache_dir = spec.settings.cache_dir
    directory = prepacked_model(Path(spec.model_dir), Path(cache_dir) if cache_dir else None, spec.options)
    model = check_model_directory(directory)
    none = cast(Runner, SimpleNamespace(model=model, abilities=Abilities("none")))
    return LoadedModel(none, load_batched(spec, directory, model))


def answer(spec: EngineSpec, loaded: LoadedModel, requests: list[GenerationRequest]) -> None:
    """All of them, as the engine's main thread does it."""
    scheduler = Scheduler(
        loaded.main,
        max_running=loaded.batching.num_slots,
        max_waiting=spec.settings.max_queue,
        prefill_chunk=prefill_chunk(spec, loaded.main),
        idle_chunk=IDLE_CHUNK,
    )
    profiles = ProfileFolder(Path(spec.settings.profile_dir), spec.device, max_files=1, max_bytes=1)
    runners = RunnerPair(loaded)
    options = RuntimeOptionState(runners, profiles)
    guidance = model_guidance(Path(spec.model_dir), loaded.generator.model)
    loop = EngineLoop(runners, scheduler, options, guidance, lambda connection, messages: None)
    inbox = loop.inbox
    inbox.put((0, Connected()))
    for key, request in enumerate(requests):
        inbox.put((0, Submit(key, request)))
    loop.run_one_step()
    while not scheduler.is_idle:
        loop.run_one_step()


if __name__ == "__main__":
    main()
