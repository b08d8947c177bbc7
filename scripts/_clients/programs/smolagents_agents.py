"""smolagents: agents that call tools, and that write code."""

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

from _clients.programs.checks import MODEL, URL, WEATHER, call, check, equal, get_weather, run

model = OpenAIModel(model_id=MODEL, api_base=f"{URL}/v1", api_key="none")


def weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: Its name.
    """
    return get_weather(city)


@check("chat")
def _chat() -> None:
    equal(model([{"role": "user", "content": "say hello"}]).content, "hello")


@check("stream")
def _stream() -> None:
    found = model.generate_stream([{"role": "user", "content": "count 5"}])
    equal("".join(delta.content or "" for delta in found), "1, 2, 3, 4, 5")


@check("tool loop")
def _tools() -> None:
    first, last = call("weather", city="Paris"), call("final_answer", answer=f"It has {WEATHER}.")
    agent = ToolCallingAgent(tools=[tool(weather)], model=model, max_steps=3, verbosity_level=0)
    equal(agent.run(f"\nscript: {first}\nscript after degrees: {last}\n"), f"It has {WEATHER}.")


@check("an agent that writes code")
def _code() -> None:
    agent = CodeAgent(tools=[tool(weather)], model=model, max_steps=2, verbosity_level=0)
    written = 'say Thought: I look.⏎<code>⏎final_answer(weather(city="Paris"))⏎</code>'
    equal(agent.run(f"\nscript: {written}\n"), get_weather("Paris"))


run()
