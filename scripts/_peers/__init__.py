"""Servers beside which genai-server is measured: made, served and measured on one machine."""
