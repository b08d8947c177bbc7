"""All messages between processes of the server, as frozen msgspec structs: one module for each kind of exchange."""
