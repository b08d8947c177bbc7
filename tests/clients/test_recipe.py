"""scripts/check_clients.py runs the recipes of docs/clients.md and of the guides."""

import re

import pytest
from _clients.client import Client
from _clients.coding_agents import CODING_AGENTS
from _clients.libraries import LIBRARIES
from _clients.recipe import PAGES, PROMPT, SERVER, recipe, section

RUN = [client.recipe for client in (*LIBRARIES, *CODING_AGENTS) if client.recipe] + ["2. Start Open WebUI"]
HEADINGS = [
    heading for page in PAGES for heading in re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def test_all_recipes_are_run() -> None:
    """As the pages say. Other lines of a guide, which are `bash`, are run by tests/guides."""
    assert set(RUN) == {heading for heading in HEADINGS if re.search(r"(?m)^```(sh|python)$", section(heading))}


@pytest.mark.parametrize("heading", RUN)
def test_the_lines_are_for_any_server(heading: str) -> None:
    lines = recipe(heading, "http://127.0.0.1:1")
    assert "http://127.0.0.1:1" in lines
    assert SERVER not in lines


@pytest.mark.parametrize("client", CODING_AGENTS, ids=lambda client: client.name)
def test_an_agent_takes_its_prompt_from_the_environment(client: Client) -> None:
    assert PROMPT in section(client.recipe)
    assert recipe(client.recipe, SERVER, "--more").rstrip().endswith('"$PROMPT" --more')


@pytest.mark.parametrize("heading", ["Claude Code", "Codex", "opencode"])
def test_an_agents_window_is_set_and_its_servers_context_is_not(heading: str) -> None:
    assert "--max-length" not in section(heading)
    assert "131072" in recipe(heading)


def test_a_library_keeps_its_prompt() -> None:
    assert PROMPT in recipe("LangChain", SERVER)


def test_a_heading_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="has a heading Nothing"):
        recipe("Nothing")
    with pytest.raises(ValueError, match="no lines of code below When the conversation is too long"):
        recipe("When the conversation is too long")


def test_only_npm_agents_have_a_step_after_installation() -> None:
    assert all(client.npm for client in CODING_AGENTS if client.postinstall)
