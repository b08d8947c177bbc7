"""Downloads models from a hub such as Hugging Face, builds models (`export`), and manages the folder of models."""
