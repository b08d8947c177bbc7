"""A chat in the terminal: the client, the conversation, and a server of its own where none runs."""
