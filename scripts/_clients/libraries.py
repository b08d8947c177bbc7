"""Libraries, each checked by a program in its own language, which prints a line of JSON for each check."""

from __future__ import annotations

import shutil
from pathlib import Path

from .client import Check, Client, Model, Place, Registry
from .program import run
from .recipe import recipe
from .relay import relay
from .samples import of_pictures, of_speech

_PROGRAMS = Path(__file__).with_name("programs")
_SCRIPTS = _PROGRAMS.parents[1]
_SECONDS = 120.0


def library(
    name: str,
    packages: tuple[str, ...],
    program: str,
    *,
    heading: str = "",
    model: Model = Model.SCRIPTED,
    images: bool = False,
    relayed: bool = False,
) -> Client:
    """A library whose checks are a program's; `images` if that also sends an image. With `relayed`, another check is
    that none of its requests is refused, because it would continue without what they asked for.
    """

    def check(place: Place) -> list[Check]:
        environment = {"CHECKED_URL": place.url, "PYTHONPATH": str(_SCRIPTS), "PYTHONWARNINGS": "ignore"}
        if images:
            environment |= of_pictures(place.images_url)
        if model is Model.SPEECH:
            environment |= of_speech(place.url)
        if heading:
            environment["CHECKED_RECIPE"] = recipe(heading, place.url)
        if not relayed:
            return _run(program, place, environment)
        with relay(place.url) as through:
            checks = _run(program, place, environment | {"CHECKED_URL": through.url})
        return [*checks, Check("no request is refused", through.refused())]

    registry = Registry.NPM if program.endswith(".mjs") else Registry.PYPI
    return Client(name, packages, check, registry, model, images, heading)


def _run(program: str, place: Place, environment: dict[str, str]) -> list[Check]:
    if program.endswith(".mjs"):
        # Node.js looks for packages above the program.
        for path in _PROGRAMS.glob("*.mjs"):
            shutil.copy(path, place.folder)
        own = place.commands / "node"
        command: list[str | Path] = [own if own.exists() else "node", place.folder / program]
    else:
        command = [place.commands / "python", _PROGRAMS / program]
    return run(command, environment, place.folder, _SECONDS).checks


# The tests use the Python SDKs of OpenAI and Anthropic; this one stands for a client that is in the environment.
QUICK = (library("`openai` (Python)", ("openai", "pydantic"), "openai_sdk.py", images=True),)
LIBRARIES = (
    *QUICK,
    library("LangChain", ("langchain-openai",), "langchain_models.py", heading="LangChain", images=True),
    library(
        "LlamaIndex", ("llama-index-llms-openai-like",), "llama_index_models.py", heading="LlamaIndex", images=True
    ),
    library(
        "LangChain embeddings",
        ("langchain-openai",),
        "langchain_embeddings.py",
        heading="LangChain embeddings",
        model=Model.POOLED,
    ),
    library(
        "LlamaIndex embeddings",
        ("llama-index-embeddings-openai-like",),
        "llama_index_embeddings.py",
        heading="LlamaIndex embeddings",
        model=Model.POOLED,
    ),
    library("`cohere` (Python)", ("cohere",), "cohere_rerank.py", heading="Cohere reranking", model=Model.POOLED),
    library(
        "LlamaIndex reranking",
        ("llama-index-postprocessor-jinaai-rerank",),
        "llama_index_rerank.py",
        heading="LlamaIndex reranking",
        model=Model.POOLED,
    ),
    library(
        "litellm embeddings and reranking",
        ("litellm",),
        "litellm_pooled.py",
        heading="litellm embeddings and reranking",
        model=Model.POOLED,
    ),
    library(
        "AI SDK embeddings and reranking (JavaScript)",
        ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/cohere", "zod"),
        "ai_sdk_pooled.mjs",
        model=Model.POOLED,
    ),
    library(
        "LangChain transcriptions",
        ("langchain-community", "openai", "pydub", "imageio-ffmpeg"),
        "langchain_transcriptions.py",
        heading="LangChain transcriptions",
        model=Model.SPEECH,
    ),
    library(
        "litellm transcriptions",
        ("litellm",),
        "litellm_transcriptions.py",
        heading="litellm transcriptions",
        model=Model.SPEECH,
    ),
    library("`openai` (JavaScript) transcriptions", ("openai", "zod"), "openai_transcriptions.mjs", model=Model.SPEECH),
    library(
        "AI SDK transcriptions (JavaScript)",
        ("ai", "@ai-sdk/openai", "zod"),
        "ai_sdk_transcriptions.mjs",
        model=Model.SPEECH,
    ),
    library("litellm", ("litellm", "mcp"), "litellm_completion.py", heading="litellm", images=True),
    library("Claude Agent SDK", ("claude-agent-sdk", "pydantic"), "claude_agent.py", relayed=True),
    library("instructor", ("instructor", "anthropic"), "instructor_modes.py"),
    library("pydantic-ai", ("pydantic-ai-slim[openai]",), "pydantic_ai_agent.py", images=True),
    library(
        "AI SDK (JavaScript)",
        ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod"),
        "ai_sdk.mjs",
        images=True,
    ),
    library("`openai` (JavaScript)", ("openai", "zod"), "openai_sdk.mjs", images=True),
    library("OpenAI Agents SDK (JavaScript)", ("@openai/agents", "openai", "zod"), "openai_agents_sdk.mjs"),
    library("`@anthropic-ai/sdk`", ("@anthropic-ai/sdk", "zod"), "anthropic_sdk.mjs", images=True),
    library("`ollama` (Python)", ("ollama",), "ollama_sdk.py", heading="Ollama's clients", images=True),
    library("`ollama` (JavaScript)", ("ollama", "zod"), "ollama_sdk.mjs", images=True),
    library("AI SDK with Ollama (JavaScript)", ("ollama-ai-provider-v2", "ai", "zod"), "ai_sdk_ollama.mjs"),
    library("LangChain with Ollama", ("langchain-ollama",), "langchain_ollama_models.py", images=True),
)
