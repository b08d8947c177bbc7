"""Clients, suites and agents which others wrote, run against this server."""
