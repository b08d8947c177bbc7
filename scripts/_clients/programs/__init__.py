"""Programs that use one library each, in that library's environment."""
