"""Models from elsewhere: downloads from a hub such as Hugging Face (client.py, repository.py), builds of ONNX models
from original models and GGUF files (builder.py and the programs that it runs), and the folder in which models are
stored (store.py).
"""
