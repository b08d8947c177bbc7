"""What a server with a real model must do, looked at from outside, one promise after another."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from .answers import Answer, read_answer
from .clients import ADMIN, DEATHS, JSON
from .gpu import gpu_memory
from .greedy import Greedy, compared
from .http import Exchange, ask, ask_json
from .server import Server
from .speed import Prompts
from .step_results import Broken, Figures, Skipped

QUESTIONS = (
    "What is the capital of France?",
    "Count from 1 to 40.",
    "Write a short story about a river and a bridge.",
    "Explain how a sailing boat can move against the wind, step by step.",
    "List ten animals, ten fruits and ten colours.",
)
# Tokens of the prompt that is read next to them.
_LONG_QUESTION = 700
_MANY = 48
_LONG_PROMPT = 6000
_MIN_LONG_PROMPT = 500
_PAUSE = 0.02
# What the server's refusals say.
_UNSUPPORTED = "is not supported on this device"
_SECONDS_FOR_AN_OPTION = 5.0
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "number": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "number"],
    "additionalProperties": False,
}


class Behavior:
    """Asks one server, whose profiles are read into `report`."""

    def __init__(self, server: Server, prompts: Prompts, report: Path) -> None:
        self._server = server
        self._port = server.port
        self._prompts = prompts
        self._report = report
        self._greedy: list[Greedy] = []

    async def chat(self) -> Figures:
        """A chat, whole and streamed."""
        asked = {"max_tokens": 24, "temperature": 0}
        whole, streamed = await self._ask("/v1/chat", **asked), await self._ask("/v1/chat/stream", **asked)
        return {"message": whole.text[:80], "streamed_the_same": whole.text == streamed.text}

    async def greedy(self) -> list[Greedy]:
        """The most likely tokens, for one question after another."""
        questions = [*QUESTIONS, self._prompts.text(min(_LONG_QUESTION, self._prompts.max_length // 2), "greedy")]
        self._greedy = [await self._most_likely(question) for question in questions]
        return self._greedy

    async def together(self) -> Figures:
        """The same for all questions at once."""
        questions = [*QUESTIONS, self._prompts.text(min(_LONG_QUESTION, self._prompts.max_length // 2), "greedy")]
        if not self._greedy:
            raise Skipped("there are no answers to compare with")
        found = await asyncio.gather(*(self._most_likely(question) for question in questions))
        return compared(self._greedy, found, "the same alone")

    async def seed(self) -> Figures:
        """The same seed gives the same answer."""
        seeds = (7, 7, 8)
        fields = {"temperature": 1.0, "max_tokens": 24}
        answers = [await self._completion(QUESTIONS[2], seed=seed, **fields) for seed in seeds]
        texts: list[str] = [answer["choices"][0]["message"]["content"] for answer in answers]
        if texts[0] != texts[1]:
            raise Broken(f"two answers with one seed: {texts[0]!r} and {texts[1]!r}")
        return {"other_seed_differs": texts[2] != texts[0]}

    async def logprobs(self) -> Figures:
        """Probabilities of the chosen and of the best tokens."""
        fields = {"logprobs": True, "top_logprobs": 5, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        choice = (await self._completion(QUESTIONS[1], **fields))["choices"][0]
        entries = choice["logprobs"]["content"]
        for entry in entries:
            top = [each["logprob"] for each in entry["top_logprobs"]]
            if len(top) != 5 or max(top) > entry["logprob"] + 1e-3 or sum(map(math.exp, top)) > 1.001:
                raise Broken(f"impossible log probabilities: {entry}")
        if len(entries) != 8:
            raise Broken(f"{len(entries)} log probabilities for 8 tokens")
        return {"first_logprob": entries[0]["logprob"]}

    async def schema(self) -> Figures:
        """An answer that must match a JSON schema."""
        shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
        choice = (await self._completion(QUESTIONS[0], response_format=shape, max_tokens=100))["choices"][0]
        text = choice["message"]["content"]
        try:
            found = json.loads(text)
        except ValueError:
            raise Broken(f"not JSON, finish reason {choice['finish_reason']}: {text!r}") from None
        if sorted(found) != ["city", "number"] or found["city"] not in ("Paris", "Rome"):
            raise Broken(f"does not match the schema: {text!r}")
        return {"message": text}

    async def stop(self) -> Figures:
        """A text that ends the answer and is not part of it."""
        known, question = next(zip(self._greedy, QUESTIONS, strict=False), (None, ""))
        mark = "" if known is None else known.text[len(known.text) // 3 :][:4].strip()
        if known is None or not mark or not mark.isascii():
            raise Skipped("there is no answer with a plain text to stop at")
        fields = {"stop": [mark], "temperature": 0, "max_tokens": _MANY, "ignore_eos": True, "cache_prompt": False}
        choice = (await self._completion(question, **fields))["choices"][0]
        expected, text = known.text[: known.text.index(mark)], choice["message"]["content"]
        if choice["finish_reason"] != "stop" or text.strip() != expected.strip():
            raise Broken(f"with stop {mark!r}, finish reason {choice['finish_reason']}: {text!r}, not {expected!r}")
        return {}

    async def disconnect(self) -> Figures:
        """A client that leaves during a stream frees its place."""
        body = {"messages": user(QUESTIONS[2]), "ignore_eos": True, "temperature": 0, "stream": True}
        async with Exchange(self._port) as exchange:
            headers = JSON | {"x-request-id": "leaver"}
            await exchange.send("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
            response = await exchange.response()
            if response.status != 200:
                raise Broken(f"status {response.status}")
            pieces = exchange.pieces()
            for _ in range(3):
                await anext(pieces)
            phase = (await self._phases()).get("leaver", "gone")
        if phase == "gone":
            raise Skipped("the answer had ended before")
        began = time.monotonic()
        await self._until(lambda phases: "leaver" not in phases)
        return {"seconds_to_free": round(time.monotonic() - began, 4)}

    async def terminate(self) -> Figures:
        """`terminate_session` while long prompts are read."""
        length = min(_LONG_PROMPT, self._prompts.max_length - 64)
        if length < _MIN_LONG_PROMPT:
            raise Skipped(f"prompts have at most {length} tokens")
        texts = [self._prompts.text(length, "terminate", number) for number in range(4)]
        asking = [asyncio.create_task(self._post("/v1/chat", text, max_tokens=64, ignore_eos=True)) for text in texts]
        try:
            begun = {"prefill", "decode"}
            phases = await self._until(lambda phases: begun & {*phases.values()} or all(each.done() for each in asking))
            if not phases:
                raise Skipped(f"all answers had ended before: {str(asking[0].result())[:200]}")
            began = time.monotonic()
            await self._set_option(terminate_session="1")
            bodies = [body for _, body in await asyncio.gather(*asking)]
            seconds = time.monotonic() - began
            status, refused = await self._post("/v1/chat", QUESTIONS[0], max_tokens=4)
        finally:
            for task in asking:
                task.cancel()
            await self._set_option(terminate_session="0")
        ends = [body.get("finish_reason") or (body.get("error") or {}).get("code") for body in bodies]
        figures: Figures = {"seconds_to_end": round(seconds, 4), "prompt_tokens": length, "ends": ends}
        figures["while_reading"] = "prefill" in phases.values()
        figures["without_a_token"] = sum(not body.get("content") for body in bodies)
        if not set(ends) <= {"terminated", "session_terminated"}:
            raise Broken(f"the terminated answers ended as {ends}", figures)
        if status != 503 or refused["error"]["code"] != "session_terminated":
            raise Broken(f"a new request got {status} {str(refused)[:200]}", figures)
        await self._ask("/v1/chat", max_tokens=4)
        return figures

    async def profile(self) -> Figures:
        """Profiling switched on and off, and the report."""
        await self._set_option(enable_profiling="check")
        try:
            await self._ask("/v1/chat", max_tokens=8, ignore_eos=True, temperature=0)
        finally:
            (device,) = (await self._set_option(enable_profiling="0"))["devices"].values()
        figures = {name: device[f"profile_{name}"] for name in ("files", "bytes")}
        if not figures["files"]:
            raise Broken(f"there is no profile: {device}", figures)
        report = await ask(self._port, "GET", "/v1/admin/profiles/latest/report?format=text")
        self._report.write_bytes(report.body)
        if report.status != 200:
            raise Broken(f"the report: {report.status} {report.body[:300].decode(errors='replace')}", figures)
        return figures

    async def kill(self) -> Figures:
        """SIGKILL to the engine during a stream."""
        pid = await asyncio.to_thread(self._server.engine_pid)
        if pid is None:
            raise Broken("no engine is ready")
        stream = asyncio.create_task(self._ask_anyway("/v1/chat/stream", ignore_eos=True, temperature=0))
        try:
            await self._until(lambda phases: "decode" in phases.values() or stream.done())
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            answer = await stream
        finally:
            stream.cancel()
        figures: Figures = {"seconds_to_error": round(time.monotonic() - began, 3), "end": f"{answer.reason}"}
        await self._engine_other_than(pid)
        figures["seconds_to_ready"] = round(time.monotonic() - began, 3)
        await self._ask("/v1/chat", max_tokens=4)
        figures["seconds_to_answer"] = round(time.monotonic() - began, 3)
        if answer.reason not in DEATHS:
            raise Broken(f"the stream ended as {answer.end}: {answer.reason}", figures)
        return figures

    async def unload(self) -> Figures:
        """Unload the model; its memory on the GPU comes back."""
        pid = await asyncio.to_thread(self._server.engine_pid)
        before = await asyncio.to_thread(gpu_memory, pid)
        began = time.monotonic()
        name = next(iter(await asyncio.to_thread(self._server.health)))
        response = await ask_json(self._port, "/v1/admin/models/unload", {"name": name, "timeout": 2})
        seconds = round(time.monotonic() - began, 3)
        after = await asyncio.to_thread(gpu_memory, pid)
        figures: Figures = {"seconds_to_unload": seconds}
        figures |= {f"{name}_before": value for name, value in before.items()}
        figures |= {f"{name}_after": value for name, value in after.items()}
        if response.status != 200:
            raise Broken(f"{response.status} {response.body[:300].decode(errors='replace')}", figures)
        if "engine_gpu_mib" in after or (pid is not None and psutil.pid_exists(pid)):
            raise Broken("the engine process still runs", figures)
        return figures

    async def answers(self) -> None:
        """One token. Raises Broken."""
        await self._ask("/v1/chat", max_tokens=1)

    async def recover(self) -> None:
        """Reset the runtime options, and ask for a token. Raises Broken."""
        await self._set_option(terminate_session="0", enable_profiling="0")
        await self.answers()

    async def _most_likely(self, question: str) -> Greedy:
        fields = {"temperature": 0, "max_tokens": _MANY, "ignore_eos": True, "cache_prompt": False}
        try:
            body = await self._completion(question, logprobs=True, top_logprobs=2, **fields)
        except Skipped:
            body = await self._completion(question, **fields)
        return Greedy.read(body["choices"][0])

    async def _completion(self, question: str, **fields: Any) -> dict[str, Any]:
        """Raises Skipped if the device does not support one of the fields, Broken without an answer."""
        status, body = await self._post("/v1/chat/completions", question, **fields)
        if status == 400 and _UNSUPPORTED in (reason := body["error"]["message"]):
            raise Skipped(reason)
        if status != 200:
            raise Broken(f"{status} {body.get('error')}")
        return body

    async def _post(self, path: str, question: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        response = await ask_json(self._port, path, {"messages": user(question), **fields})
        body: dict[str, Any] = response.json()
        return response.status, body

    async def _ask(self, path: str, **fields: Any) -> Answer:
        """An answer that is complete. Raises Broken."""
        answer = await self._ask_anyway(path, **fields)
        if answer.end != "finished":
            raise Broken(f"{path}: {answer}")
        return answer

    async def _ask_anyway(self, path: str, **fields: Any) -> Answer:
        response = await ask_json(self._port, path, {"messages": user(QUESTIONS[0]), **fields})
        is_streamed = response.headers["content-type"].startswith("text/event-stream")
        return read_answer(response.status, bytes(response.body), streamed=is_streamed)

    async def _set_option(self, **options: str) -> dict[str, Any]:
        # A step that has run out of time resets its options here; it must end even without an answer.
        async with asyncio.timeout(_SECONDS_FOR_AN_OPTION):
            response = await ask_json(self._port, ADMIN, options)
        if response.status != 200:
            raise Broken(f"{options}: {response.status} {response.body[:300].decode(errors='replace')}")
        found: dict[str, Any] = response.json()
        return found

    async def _phases(self) -> dict[str, str]:
        """The phase of each request that waits or runs, by its id."""
        response = await ask(self._port, "GET", "/v1/requests")
        return {entry["id"]: entry["phase"] for entry in response.json()["data"]}

    async def _until(self, condition: Callable[[dict[str, str]], object]) -> dict[str, str]:
        """Look at the phases until the condition holds for them."""
        while True:
            phases = await self._phases()
            if condition(phases):
                return phases

    async def _engine_other_than(self, pid: int) -> int:
        """The next engine that is ready."""
        while True:
            found = await asyncio.to_thread(self._server.engine_pid)
            if found not in (None, pid):
                return found
            await asyncio.sleep(_PAUSE)


def user(text: str) -> list[dict[str, Any]]:
    """The messages of a chat with this question."""
    return [{"role": "user", "content": text}]
