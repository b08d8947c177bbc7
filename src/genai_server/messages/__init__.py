"""The messages that the server's processes (API processes, supervisor, engines and workers) send to each other, as
frozen msgspec structs. Each module has one kind of exchange, such as requests to an engine or commands to the
supervisor.
"""
