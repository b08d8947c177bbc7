"""What chat completions accept and remove."""

from typing import Any

from genai_server.apis.chat_completions.schemas import leave_out_of_chat


def test_a_verbosity_of_chat_completions_is_taken_out_and_named() -> None:
    for given, left, names in (
        ({"verbosity": "low", "n": 1}, {"n": 1}, ["verbosity"]),
        ({"verbosity": "medium"}, {"verbosity": "medium"}, []),
        ({"verbosity": "loud"}, {"verbosity": "loud"}, []),
        ({"client_metadata": {}}, {"client_metadata": {}}, []),
    ):
        body: Any = dict(given)
        assert (leave_out_of_chat(body), body) == (names, left)
