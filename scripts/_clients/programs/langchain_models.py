"""LangChain, with `langchain-openai`."""

from langchain_openai import ChatOpenAI

from _clients.programs.checks import IMAGES_MODEL, IMAGES_URL, recipe, run
from _clients.programs.langchain_chat import check_models

pictured = ChatOpenAI(model=IMAGES_MODEL, base_url=f"{IMAGES_URL}/v1", api_key="none", max_tokens=4)
check_models(recipe()["model"], pictured)
run()
