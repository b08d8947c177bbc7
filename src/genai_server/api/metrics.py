"""The figures of an answer as clients get them."""

from typing import Any

import msgspec

from genai_server.api.choices import Choices


def metrics_of(choices: Choices) -> dict[str, Any]:
    """Of the request's first answer, in the form of openai_api.schemas.base.Metrics, to six digits."""
    answer = choices.answers[0]
    figures = msgspec.structs.asdict(answer.timings())
    rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figures.items()}
    profiled = {"profiled_tokens": answer.num_profiled} if answer.num_profiled else {}
    return {**rounded, "model": choices.model, **profiled}
