"""Usage in OpenAI's terms."""

from genai_server.http.telemetry.request_record import Usage


def test_usage_adds_up() -> None:
    assert Usage(3, 4, 2, 1, accepted=3, rejected=5, images=1).to_json() == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 2, "image_tokens": 1},
        "completion_tokens_details": {
            "reasoning_tokens": 1,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 5,
        },
    }
