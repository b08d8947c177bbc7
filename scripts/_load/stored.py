"""A conversation and a response that a server really stores, for requests that name them by placeholders."""

from __future__ import annotations

from .http import ask, ask_json

# As long as the identifiers that the server assigns, so that a request keeps its length.
CONVERSATION = "conv_" + "c" * 48
RESPONSE = "resp_" + "d" * 48
ITEM = "msg_" + "e" * 48
_TURNS = [{"role": "user", "content": f"say {number}"} for number in range(20)]
# Others replace them in the store, or delete them.
_REQUESTS_BEFORE_RENEWAL = 100


class Stored:
    """What is stored on one server. It is stored again once in a while."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._identifiers: dict[bytes, bytes] = {}
        self._used = 0

    async def fill(self, data: bytes) -> bytes:
        """The request with identifiers in place of the placeholders. Raises BrokenAnswer and OSError."""
        if not any(placeholder.encode() in data for placeholder in (CONVERSATION, RESPONSE, ITEM)):
            return data
        if self._used % _REQUESTS_BEFORE_RENEWAL == 0:
            await self._store()
        self._used += 1
        for placeholder, identifier in self._identifiers.items():
            data = data.replace(placeholder, identifier)
        return data

    async def _store(self) -> None:
        conversation = (await ask_json(self._port, "/v1/conversations", {"items": _TURNS})).json()["id"]
        items = (await ask(self._port, "GET", f"/v1/conversations/{conversation}/items")).json()
        response = (await ask_json(self._port, "/v1/responses", {"input": "say hi"})).json()["id"]
        found = {CONVERSATION: conversation, RESPONSE: response, ITEM: items["last_id"]}
        self._identifiers = {name.encode(): identifier.encode() for name, identifier in found.items()}
