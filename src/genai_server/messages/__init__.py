"""The messages that the server's processes send to each other, as frozen msgspec structs: API processes (which serve
HTTP), the supervisor (which starts the other processes), engines (which run models) and workers. Each module has one
kind of exchange, such as requests to an engine or commands to the supervisor.
"""
