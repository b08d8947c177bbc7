"""An engine reports its prefix cache to API processes that choose between several engines, and to no others."""

from pathlib import Path

from genai_server.engine.api_connections import Connected
from genai_server.engine.kv_cache.kv_events import CachedBlocks, prefix_digest
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.messages.admin import ResetPrefixCache
from genai_server.messages.engine_protocol import CachedPrefixes
from genai_server.messages.prefix_cache import prefix_digests
from tests.engine.model_runners import batched_runner
from tests.stepped_loop import API, OTHER_API, SteppedLoop

PROMPT = list(range(100, 300))


def loop(folder: Path, *, reports: bool) -> SteppedLoop:
    runner = batched_runner(num_slots=2)
    blocks = CachedBlocks(runner.slots.slots, prefix_digest) if reports else None
    scheduler = Scheduler(runner, max_running=2, max_waiting=2, prefill_chunk=64)
    loaded = LoadedModel(runner, runner, cached_blocks=blocks)
    return SteppedLoop(loaded, scheduler, Guidance(None, runner.model.vocab_size), folder)


def known(bench: SteppedLoop, connection: int) -> set[bytes]:
    """What an API process knows of the cache."""
    found: set[bytes] = set()
    for to, message in bench.sent:
        if to == connection and isinstance(message, CachedPrefixes):
            found.update(message.added)
            found.difference_update(message.removed)
    return found


def test_api_processes_know_the_prefix_cache(tmp_path: Path) -> None:
    bench = loop(tmp_path, reports=True)
    bench.put_request(1, PROMPT, max_tokens=20, max_length=512, ignore_eos=True)
    bench.run()
    read = [*PROMPT, *bench.tokens(1)[:-1]]  # the last token of an answer is not read
    assert known(bench, API) == set(prefix_digests(read, None, None))
    bench.put(Connected(), OTHER_API)
    bench.steps(1)
    assert known(bench, OTHER_API) == known(bench, API)
    bench.put(ResetPrefixCache(1))
    bench.steps(1)
    assert known(bench, OTHER_API) == known(bench, API) == set()


def test_the_only_engine_of_a_model_reports_nothing(tmp_path: Path) -> None:
    bench = loop(tmp_path, reports=False)
    bench.put_request(1, PROMPT, max_tokens=20, max_length=512, ignore_eos=True)
    bench.run()
    assert bench.messages(CachedPrefixes) == []
