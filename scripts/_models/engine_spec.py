"""An engine as the scripts load it in their own process: on the CPU, with only what its model needs."""

from __future__ import annotations

from pathlib import Path

from genai_server.messages.launch import EngineSpec


def engine_spec(
    directory: Path,
    slots: int,
    max_length: int,
    cache_dir: Path | None = None,
    *,
    max_queue: int = 0,
    prefill_chunk: int = 0,
) -> EngineSpec:
    """For as many sequences of at most `max_length` tokens; weights are packed in `cache_dir`, if there is one."""
    return EngineSpec(
        device="cpu",
        model_dir=str(directory),
        threads=0,
        max_batch_size=slots,
        max_queue=max_queue,
        max_queue_tokens=0,
        prefill_chunk=prefill_chunk,
        itl_target=0.0,
        speculation="off",
        draft_memory_bytes=0,
        max_length=max_length,
        scheduler="auto",
        exact=False,
        kv_cache_bytes=0,
        kv_cache_type="fp32",
        attention_type="fp32",
        encoder_weights="own",
        encoder_cache_bytes=0,
        cache_dir=str(cache_dir or ""),
        prefix_cache_bytes="0",
        prefix_cache_type="same",
        prefix_cache_dir="",
        profile_dir="",
        profile_max_files=0,
        profile_max_bytes=0,
        profile_max_age=0,
        profile_max_rows=0,
        log_level="warning",
        log_format="text",
        telemetry=False,
    )
