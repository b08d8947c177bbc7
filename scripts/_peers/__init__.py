"""Servers with which genai-server is compared: built, served and measured on one machine."""
