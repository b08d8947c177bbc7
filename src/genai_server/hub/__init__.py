"""Models from a hub such as Hugging Face, and where they lie on this machine."""
