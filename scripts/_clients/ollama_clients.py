"""Clients of Ollama's API."""

from __future__ import annotations

from .libraries import library

OLLAMA = (
    library("`ollama` (Python)", ("ollama",), "ollama_sdk.py", heading="Ollama's clients", images=True),
    library("`ollama` (JavaScript)", ("ollama", "zod"), "ollama_sdk.mjs", images=True),
    library("AI SDK with Ollama (JavaScript)", ("ollama-ai-provider-v2", "ai", "zod"), "ai_sdk_ollama.mjs"),
    library("LangChain with Ollama", ("langchain-ollama",), "langchain_ollama_models.py", images=True),
)
