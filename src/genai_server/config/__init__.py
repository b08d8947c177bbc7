"""The settings: command line > environment > .env > configuration file > default. All are checked before the start.

The only package that reads the process's environment.
"""
