"""Third-party clients, test suites and agents, run against this server."""
