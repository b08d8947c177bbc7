"""Fields of endpoints whose result is numbers: vectors, scores and probabilities."""

from pydantic import Field

from genai_server.generation.parameters.other_servers import NullFields


class ResultFields(NullFields):
    """Which model computes the result, on which device, and how soon."""

    model: str | None = Field(None, description="Id of a served model; by default the first suitable one.")
    device: str | None = Field(None, description="Configured device to run on; by default the least busy one.")
    priority: int | None = Field(
        None, ge=-1000, le=1000, description="Of a key's requests, those with lower values come first; 0 by default."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds, including waiting, after which the request fails.")
