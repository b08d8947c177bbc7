"""Secrecy of the log: keys, prompts and answers are in no log, at any level."""

from pathlib import Path

import httpx
import pytest

from tests.running_server import DEMO, body, run_server, wait_until

KEY, ADMIN, WRONG = "key-swordfish-0123456789", "admin-swordfish-0123456789", "wrong-swordfish-0123456789"


@pytest.mark.parametrize("device", ["scripted", pytest.param("cpu", marks=pytest.mark.slow)])
def test_no_key_prompt_or_answer_is_in_the_log(tmp_path: Path, device: str) -> None:
    options = ["--device", device, "--model-dir", str(DEMO), "--log-level", "debug"]
    settings = {"GENAI_API_KEYS": f"ann:{KEY}", "GENAI_ADMIN_API_KEY": ADMIN}
    text = "say swordfish"
    message = {"role": "user", "content": text}
    schema = {"type": "object", "properties": {"swordfish": {"const": "swordfish"}}}
    asked: list[tuple[str, object]] = [
        ("/v1/chat", body(text)),
        ("/v1/chat/stream", body(text)),
        ("/v1/chat", body("swordfish; fail at 1")),
        ("/v1/chat/completions", body(text, stream=True, logprobs=True)),
        ("/v1/chat/completions", body(text, stop=["swordfish"], user="swordfish", metadata={"a": "swordfish"})),
        ("/v1/chat/completions", body(text, structured_outputs={"json": schema}, max_tokens=9)),
        ("/v1/chat/completions", body(text, structured_outputs={"regex": "(swordfish"})),
        ("/v1/chat/completions", body(text, swordfish="swordfish")),
        ("/v1/chat/completions", body("\ud800swordfish".encode("utf-16", "surrogatepass").decode("utf-16", "replace"))),
        ("/v1/completions", {"prompt": text, "max_tokens": 9}),
        ("/v1/responses", {"input": text}),
        ("/v1/messages", {"messages": [message], "max_tokens": 9, "model": "demo"}),
        ("/v1/messages", {"messages": [{"role": "swordfish"}]}),
        ("/tokenize", {"prompt": text}),
        ("/apply-template", {"messages": [message]}),
        ("/v1/chat", "swordfish"),
    ]
    with run_server(tmp_path, *options, settings=settings) as server:
        with httpx.Client(base_url=server.url, timeout=90) as client:
            for path, content in asked:
                for key in (KEY, ADMIN, WRONG):
                    headers = {"authorization": f"Bearer {key}", "x-request-id": "sword fish"}
                    assert client.post(path, json=content, headers=headers).status_code in (200, 400, 401, 500)
            client.get("/v1/models?key=swordfish", headers={"x-api-key": KEY})
            client.get("/swordfish", headers={"x-api-key": KEY})
            json_type = {"content-type": "application/json"}
            client.post("/v1/chat", content=b'{"swordfish', headers={"x-api-key": KEY, **json_type})
            profiling = {"enable_profiling": "a/swordfish"}
            client.post("/v1/admin/runtime_options", json=profiling, headers={"x-api-key": ADMIN})
        # Something is logged at this level.
        wait_until(lambda: "method=POST path=/v1/admin/runtime_options" in server.log())
        assert "method=GET path=/v1/models status=200" in server.log()
    assert "swordfish" not in server.log()
