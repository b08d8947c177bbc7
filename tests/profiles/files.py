"""Small profiles in ONNX Runtime's format, made by hand: it is known what is slow in them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genai_server.profiles.manifest import DECODE, PREFILL, SUFFIX, End, PassRecord, Session, encode_line

EMBEDDING = "/model/embed_tokens/Gather"
DOWN = "/model/layers.1/mlp/down_proj/MatMul"
BEGAN = 1_700_000_000.0


def kernel(
    node: str, operator: str, start: int, duration: int, *, thread: int = 1, shape: Sequence[int] = (), stats: Any = ""
) -> dict[str, Any]:
    """A kernel's event; `shape` is that of its last input, of integers."""
    args = {
        "op_name": operator,
        "provider": "CPUExecutionProvider",
        "input_type_shape": [{"float": [8, 4]}, *([{"int64": list(shape)}] if shape else [])],
        "thread_scheduling_stats": stats,
    }
    return event(f"{node}_kernel_time", start, duration, category="Node", thread=thread, args=args)


def event(
    name: str, start: int, duration: int, *, category: str = "Session", thread: int = 1, args: Any = None
) -> dict[str, Any]:
    """An event with a duration, in microseconds."""
    return {
        "cat": category,
        "pid": 7,
        "tid": thread,
        "dur": duration,
        "ts": start,
        "ph": "X",
        "name": name,
        "args": args or {},
    }


def run_events(num_tokens: int = 1, *, down: int = 300, other: int = 100, start: int = 0) -> list[dict[str, Any]]:
    """A run of a model with an embedding and two layers; `down` µs are spent in DOWN, `other` µs in no kernel."""
    length = 100 + 200 + down + other
    return [
        kernel(EMBEDDING, "Gather", start + 50, 100, shape=(1, num_tokens)),
        kernel("/model/layers.0/attn/GroupQueryAttention", "GroupQueryAttention", start + 150, 200),
        kernel(DOWN, "MatMulNBits", start + 350, down),
        event("SequentialExecutor::Execute", start + 40, length - 50),
        event("model_run", start, length),
    ]


def write(path: Path, events: Sequence[dict[str, Any]]) -> Path:
    """Write a file as ONNX Runtime does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(events), encoding="utf-8")
    return path


def write_session(
    folder: Path,
    *,
    decodes: int = 8,
    slow: dict[int, int] | None = None,
    prefix: str = "mine",
    began: float = BEGAN,
    end: bool = True,
    request: str = "req-1",
) -> Path:
    """A session of a prompt of 12 tokens and `decodes` tokens; `slow` maps tokens to the µs that they spend in DOWN.
    Returns its manifest.
    """
    lines = [session(f"{prefix}_{began:.0f}", prefix, began)]
    for token in range(decodes + 1):
        name = f"{prefix}_{began:.0f}_{token}.json"
        write(folder / name, run_events(1 if token else 12, down=(slow or {}).get(token, 300)))
        lines.append(record(name, token, began + token, request=request))
    if end:
        lines.append(encode_line(End(began + decodes + 1)))
    manifest = folder / f"{prefix}_{began:.0f}{SUFFIX}"
    manifest.write_bytes(b"".join(lines))
    return manifest


def session(id: str, prefix: str = "mine", began: float = BEGAN) -> bytes:
    """The first line of a manifest."""
    about = Session(id, prefix, began, device="cpu", model="demo", threads=2, cores=2, versions={"onnxruntime": "1"})
    return encode_line(about)


def record(file: str, token: int, started: float, *, request: str = "req-1") -> bytes:
    """A manifest's line for a pass; token 0 is the prompt's."""
    position, num_tokens = (11 + token, 1) if token else (0, 12)
    phase = DECODE if token else PREFILL
    return encode_line(PassRecord(file, request, phase, token, position, num_tokens, started, 0.001, 0.0015))
