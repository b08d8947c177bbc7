"""The server's settings: `Settings` (settings.py) defines them, and `load_settings` (sources.py) reads them.
Precedence: command line, environment, `.env`, configuration file, default. All settings are checked before the server
starts.

This is the only package that reads the process's environment variables.
"""
