"""All that crosses a process border, as frozen msgspec structs: a module for each kind of exchange."""
