"""Measure the cost of delivering a streamed token: the processor time of the process that answers HTTP, per token.

By default a scripted device gives a token every few milliseconds. With a directory, that model runs. The client reads
the socket and parses nothing. Engines are other processes and do not count. Linux and macOS.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import psutil
from _load.server import HOST, Server, run_server
from _models.arguments import numbers
from _models.table import table

HEAD = ["streams", "tokens each", "core-ms a token", "least", "most"]
_WARM_UP_TOKENS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", metavar="MODEL_DIR")
    parser.add_argument("--streams", type=numbers, default=(1, 4), metavar="N,N…", help="streams at once (default 1,4)")
    parser.add_argument("--tokens", type=int, default=2000, metavar="N", help="tokens of each stream (2000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="times that each is measured (3)")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds of the scripted device's steps (0.005)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    directory: Path | None = arguments.model_dir
    if directory is None:
        settings, text = (
            {"GENAI_DEVICE": "scripted", "GENAI_MAX_LENGTH": "4096"},
            f"count {arguments.tokens}; delay {arguments.delay}",
        )
    else:
        settings, text = {"GENAI_MODEL_DIR": str(directory)}, "Count."
    settings |= {"GENAI_LOG_LEVEL": "error"}
    found: dict[int, list[float]] = {streams: [] for streams in arguments.streams}
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder), settings) as server:
        cost(server, max(found), text, _WARM_UP_TOKENS)
        for _ in range(arguments.rounds):
            for streams, costs in found.items():
                costs.append(cost(server, streams, text, arguments.tokens))
    rows = [
        [f"{streams}", f"{arguments.tokens}", *(f"{1000 * of(costs):.3f}" for of in (median, min, max))]
        for streams, costs in found.items()
    ]
    print(table([HEAD, *rows], markdown=arguments.markdown))


def cost(server: Server, streams: int, text: str, tokens: int) -> float:
    """Seconds of the processor for each token."""
    process = psutil.Process(server.pid)
    before = process.cpu_times()
    with ThreadPoolExecutor(streams) as clients:
        for read in [clients.submit(stream, server.port, text, tokens) for _ in range(streams)]:
            read.result()
    after = process.cpu_times()
    return (after.user - before.user + after.system - before.system) / (streams * tokens)


def stream(port: int, text: str, tokens: int) -> None:
    """Read a streamed answer. Raises RuntimeError if it is no stream that ends."""
    asked = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens}
    body = json.dumps({**asked, "ignore_eos": True, "temperature": 0}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
    last = b""
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        while data := connection.recv(1 << 16):
            last = (last + data)[-1000:]
    if b"data: [DONE]" not in last:
        raise RuntimeError(f"a stream has not ended: {last.decode(errors='replace')}")


if __name__ == "__main__":
    main()
