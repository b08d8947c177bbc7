"""What the scripts under load and under attack are made of: soak, fuzz, many_connections."""
