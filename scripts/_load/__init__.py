"""Parts of the scripts for load and hostile requests: soak, fuzz, many_connections."""
