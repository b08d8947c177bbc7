"""/metrics in Prometheus's text formats."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client.exposition import choose_encoder

from genai_server.generation.dependencies import TheServices

PATH = "/metrics"

router = APIRouter(tags=["status"])


@router.get(PATH, responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
async def metrics(request: Request, services: TheServices) -> Response:
    """Metrics for Prometheus, the same from each API process."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(await asyncio.to_thread(encode, services.registry), media_type=content_type)
