"""LangChain, with `langchain-ollama`."""

from langchain_ollama import ChatOllama, OllamaLLM

from _clients.programs.checks import IMAGES_MODEL, IMAGES_URL, MODEL, URL, check, equal, run
from _clients.programs.langchain_chat import check_models

model = ChatOllama(model=MODEL, base_url=URL, temperature=0, num_ctx=8192, validate_model_on_init=True)
check_models(model, ChatOllama(model=IMAGES_MODEL, base_url=IMAGES_URL, num_predict=4))


@check("tokens of an answer")
def _usage() -> None:
    equal(model.invoke("say hello").usage_metadata["output_tokens"], 5)


@check("text completion")
def _completion() -> None:
    equal(OllamaLLM(model=MODEL, base_url=URL).invoke("say hello"), "hello")


@check("reasoning")
def _reasoning() -> None:
    thinking = ChatOllama(model=MODEL, base_url=URL, reasoning=True)
    answer = thinking.invoke("say <think>so</think>yes")
    equal((answer.content, answer.additional_kwargs["reasoning_content"]), ("yes", "so"))


run()
