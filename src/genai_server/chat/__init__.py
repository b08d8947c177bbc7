"""A chat in the terminal: the client, the conversation, and a server of its own if none runs."""
