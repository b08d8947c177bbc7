"""Send a server damaged and odd images: cut, changed, of other types, with wrong sizes, with many pixels.

Each is sent in the form of one of four APIs, and must be answered, or refused with an error that names its field. No
process may die, nothing may take longer than a request may wait, and /healthz must answer all the time. Findings are
reported with the numbers that reproduce them. Linux only; exits with status 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _load.file_fuzzer import FileFuzzer, fuzz, parsed
from _load.fuzzing import LONGEST_PULSE
from _load.hostile_images import hostile_image
from _load.http import ask, ask_json
from _load.pulse import pulse
from _load.server import REPOSITORY, Server, run_server

_SETTINGS = {
    "GENAI_MODEL_DIR": str(REPOSITORY / "tests" / "built_models" / "qwen-3-vl-images"),
    # Each image is read and encoded.
    "GENAI_ENCODER_CACHE_BYTES": "0",
}
_RESULTS = re.compile(r'^genai:images_total\{result="(\w+)"} (\S+)$', re.MULTILINE)
_CRASHES = "crashes the process"


def request(number: int, data: bytes | None) -> tuple[str, dict[str, Any], str]:
    """The path and the body of a number's request, and the field that has the image; None sends a text."""
    text = base64.b64encode(data or b"").decode()
    url = f"data:image/png;base64,{text}"
    detail = "low" if number % 3 == 0 else "auto"

    def asked(*parts: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [{"role": "user", "content": "hi" if data is None else parts}]

    match number % 4:
        case 0:
            part = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
            body = {"messages": asked(part), "max_tokens": 1}
            return "/v1/chat/completions", body, "messages[0].content[0].image_url.url"
        case 1:
            part = {"type": "input_image", "image_url": url, "detail": detail}
            body = {"input": asked(part), "max_output_tokens": 1, "store": False}
            return "/v1/responses", body, "input[0].content[0].image_url"
        case 2:
            part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}
            return "/v1/messages", {"messages": asked(part), "max_tokens": 1}, "messages[0].content[0].source.data"
    message = {"role": "user", "content": "hi"} if data is None else {"role": "user", "content": "", "images": [text]}
    return "/api/chat", {"messages": [message], "stream": False, "options": {"num_predict": 1}}, "messages[0].images[0]"


def prompt_tokens(answer: dict[str, Any]) -> int:
    """The tokens of the prompt, in the words of any API."""
    usage = answer.get("usage", answer)
    names = ("prompt_tokens", "prompt_eval_count", "input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name, 0) for name in names)


async def send(longest_pulse: float, fuzzer: FileFuzzer, numbers: range, folder: Path) -> None:
    """Send the images of these numbers."""
    with run_server(folder, _SETTINGS) as server, pulse(server.port) as beats:
        before = server.api_pids(), server.engine_pid()
        plain = [await _asked(server, number, None) for number in range(4)]

        async def read(number: int, data: bytes) -> str:
            status, found, field = await _asked(server, number, data)
            if status == 200:
                if prompt_tokens(found) <= prompt_tokens(plain[number % 4][1]):
                    fuzzer.broken.append(f"{number}: {found}")
                return "answered"
            error = found["error"]
            message, param = (error, field) if isinstance(error, str) else (error["message"], error.get("param", field))
            if status != 400 or _CRASHES in message:
                fuzzer.broken.append(f"{number}: {status}: {message}")
            return fuzzer.refused(number, param, message, field, f"{field} cannot be used: the image ")

        await fuzzer.send(numbers, read)
        await asyncio.to_thread(beats.look)
        print(f"slowest /healthz {beats.slowest():.3f} s, failed {beats.failed} times")
        if beats.failed or beats.slowest() > longest_pulse:
            fuzzer.broken.append(f"/healthz must answer within {longest_pulse:g} s")
        if (after := (server.api_pids(), server.engine_pid())) != before:
            fuzzer.broken.append(f"the processes were {before} and are {after}")
        metrics = await ask(server.port, "GET", "/metrics")
        for result, number in _RESULTS.findall(metrics.body.decode()):
            fuzzer.counted[result] = int(float(number))


async def _asked(server: Server, number: int, data: bytes | None) -> tuple[int, dict[str, Any], str]:
    """Status, body and the field of a number's request."""
    path, body, field = request(number, data)
    response = await ask_json(server.port, path, body)
    found: dict[str, Any] = response.json()
    return response.status, found, field


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pulse", type=float, default=LONGEST_PULSE, help=f"slowest /healthz that is allowed ({LONGEST_PULSE:g})"
    )
    arguments = parsed(parser)
    fuzz(arguments, hostile_image, "GENAI_MEDIA_TIMEOUT", partial(send, arguments.pulse))
