"""All that crosses a process border, as frozen msgspec structs: one module for each kind of exchange."""
