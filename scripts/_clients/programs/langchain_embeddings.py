"""LangChain's embeddings, with `langchain-openai`."""

import asyncio

from _clients.programs.checks import ABOUT, QUESTION, check, nearest, recipe, run

embeddings = recipe()["embeddings"]


@check("embed_query, embed_documents")
def _embed() -> None:
    nearest(embeddings.embed_query(QUESTION), embeddings.embed_documents(ABOUT))


@check("aembed_documents")
def _asynchronous() -> None:
    nearest(embeddings.embed_query(QUESTION), asyncio.run(embeddings.aembed_documents(ABOUT)))


run()
