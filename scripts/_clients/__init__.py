"""Third-party clients and agents, run against this server."""
