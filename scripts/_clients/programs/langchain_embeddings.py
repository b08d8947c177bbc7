"""LangChain's embeddings, with `langchain-openai`."""

from _clients.programs.checks import ABOUT, QUESTION, nearest, recipe, run

embeddings = recipe()["embeddings"]


def check_embed_query_and_embed_documents() -> None:
    nearest(embeddings.embed_query(QUESTION), embeddings.embed_documents(ABOUT))


run(globals())
