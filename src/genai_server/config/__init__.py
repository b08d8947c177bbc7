"""The server's settings. Precedence: command line, environment, `.env`, configuration file, default. All settings are
checked before the server starts.

This is the only package that reads the process's environment variables.
"""
