"""What an engine process is told, and what it tells, as frozen msgspec structs: a module for each kind of talk."""
