"""Coding agents that work with a model of this server: `genai-server launch`."""
