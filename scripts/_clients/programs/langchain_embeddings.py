"""LangChain's embeddings, with `langchain-openai`."""

import asyncio

from _clients.programs.checks import ABOUT, QUESTION, nearest, recipe, run

embeddings = recipe()["embeddings"]


def check_embed_query_and_embed_documents() -> None:
    nearest(embeddings.embed_query(QUESTION), embeddings.embed_documents(ABOUT))


def check_aembed_documents() -> None:
    nearest(embeddings.embed_query(QUESTION), asyncio.run(embeddings.aembed_documents(ABOUT)))


run(globals())
