"""Downloads models from a hub such as Hugging Face (`pull`), builds ONNX models (`export`), and manages the folder of
models.
"""
