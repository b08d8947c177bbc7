"""Models from a hub such as Hugging Face, and their folder on this machine."""
