"""What the reader of a stream receives."""

from genai_server.engine_client.in_flight import TokenStream
from genai_server.messages.engine_protocol import Tokens


async def received_batches(stream: TokenStream) -> list[Tokens]:
    """All batches of tokens up to the end."""
    return [batch async for batch in stream if isinstance(batch, Tokens)]


async def received_tokens(stream: TokenStream) -> list[int]:
    """The ids of all tokens up to the end."""
    return [token for batch in await received_batches(stream) for token in batch.tokens]
