"""A running server, its clients, and what is seen of it: parts of the scripts that start one."""
