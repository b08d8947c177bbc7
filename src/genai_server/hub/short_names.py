"""The table of short names, such as phi4-mini, that commands accept in place of the names of Hugging Face repositories
with onnxruntime-genai models.
"""

# What `genai-server pull` takes in place of each. A part behind a colon is the folder of one of several models, below
# which each has variants for devices.
SHORT_NAMES = {
    "phi4-mini": "microsoft/Phi-4-mini-instruct-onnx",
    "phi4-mini-reasoning": "microsoft/Phi-4-mini-reasoning-onnx",
    "phi4": "microsoft/phi-4-onnx",
    "phi4-reasoning-plus": "microsoft/Phi-4-reasoning-plus-onnx",
    "phi3-mini": "microsoft/Phi-3-mini-4k-instruct-onnx",
    "phi3-mini-128k": "microsoft/Phi-3-mini-128k-instruct-onnx",
    "phi3-medium": "microsoft/Phi-3-medium-4k-instruct-onnx-cpu",
    "llama3.2-3b": "onnx-community/Llama-3.2-3B-Instruct-ONNX",
    "qwen3-8b": "onnx-community/Qwen3-8B-ONNX",
    "mistral-7b": "microsoft/mistral-7b-instruct-v0.2-ONNX",
    "deepseek-r1-1.5b": "onnxruntime/DeepSeek-R1-Distill-ONNX:deepseek-r1-distill-qwen-1.5B",
    "deepseek-r1-7b": "onnxruntime/DeepSeek-R1-Distill-ONNX:deepseek-r1-distill-qwen-7B",
    "deepseek-r1-14b": "onnxruntime/DeepSeek-R1-Distill-ONNX:deepseek-r1-distill-qwen-14B",
    "gpt-oss-20b": "onnxruntime/gpt-oss-20b-onnx",
}
