"""Schemas sent to a real server with the demo model, and whether its answers fit them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import httpx
from _load.server import DEMO, HOST, run_server

from .checking import Checked
from .drawn import drawn_schema
from .verdicts import Judge, Unjudged

_SETTINGS = {"GENAI_MODEL": str(DEMO), "GENAI_DEVICE": "cpu"}


def serve_all(numbers: range, seed: int) -> list[Checked]:
    """One answer to each schema, but for those that the server refuses."""
    judge = Judge()
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), _SETTINGS) as server:
        url = f"http://{HOST}:{server.port}/v1/chat/completions"
        with httpx.Client(timeout=60) as client:
            return [_answered(client, url, drawn_schema(seed, number), Checked(number), judge) for number in numbers]


def _answered(client: httpx.Client, url: str, schema: dict[str, object], checked: Checked, judge: Judge) -> Checked:
    form = {"type": "json_schema", "json_schema": {"name": "drawn", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "What is the weather?"}], "response_format": form}
    # The highest temperature: otherwise the model repeats its training data.
    answer = client.post(url, json={**body, "max_tokens": 200, "temperature": 2, "seed": checked.number})
    if answer.status_code == 400:
        checked.refusal = answer.json()["error"]["message"].splitlines()[0][:160]
        return checked
    if answer.status_code != 200:
        checked.broken.append(f"{json.dumps(schema)[:400]}\n  is answered {answer.status_code}: {answer.text[:300]}")
        return checked
    choice = answer.json()["choices"][0]
    content = choice["message"]["content"]
    if choice["finish_reason"] != "stop":
        checked.unended += 1
        return checked
    checked.answers += 1
    try:
        complaint = judge.complaint(schema, content.encode())
    except Unjudged:
        checked.unjudged += 1
        return checked
    if complaint is not None:
        checked.broken.append(f"{json.dumps(schema)[:400]}\n  gives {content[:200]!r}: {complaint}")
    return checked
