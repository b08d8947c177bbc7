"""An engine as the scripts load it in their own process: on the CPU, with whatever its model needs and nothing else."""

from __future__ import annotations

from pathlib import Path

from genai_server.messages.launch import EngineSpec


def engine_spec(directory: Path, slots: int, max_length: int, cache_dir: Path | None = None) -> EngineSpec:
    """For as many sequences of at most `max_length` tokens; weights are packed in `cache_dir`, if there is one."""
    return EngineSpec(
        device="cpu",
        model_dir=str(directory),
        address="",
        secret="",
        threads=0,
        max_batch_size=slots,
        max_queue=0,
        max_queue_tokens=0,
        prefill_chunk=0,
        max_length=max_length,
        scheduler="auto",
        kv_cache_bytes=0,
        cache_dir=str(cache_dir or ""),
        profile_dir="",
        profile_max_files=0,
        profile_max_bytes=0,
        profile_max_age=0,
        profile_max_rows=0,
        state_file="",
        heartbeat_file="",
        log_level="warning",
    )
