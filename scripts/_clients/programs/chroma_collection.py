"""Chroma: a collection with this server's embeddings."""

import chromadb
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

from _clients.programs.checks import ABOUT, QUESTION, URL, check, equal, run

embed = OpenAIEmbeddingFunction(api_key="none", api_base=f"{URL}/v1", model_name="vectors")


@check("a collection's nearest text")
def _query() -> None:
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("texts", embedding_function=embed)
    collection.add(ids=["0", "1", "2"], documents=ABOUT)
    equal(collection.query(query_texts=[QUESTION], n_results=1)["ids"], [["0"]])


run()
