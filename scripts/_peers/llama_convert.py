"""Runs llama.cpp's converter of checkpoints, with the folders of its modules as the first two arguments.

The converter knows published vocabularies by their hash. This one is split as Qwen2's, but for the words. Run with the
interpreter of llama.cpp's environment, which has nothing of genai-server's.
"""

import importlib
import runpy
import sys

sys.path[:1] = [sys.argv.pop(1), sys.argv.pop(1)]
importlib.import_module("conversion.base").TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
runpy.run_module("convert_hf_to_gguf", run_name="__main__")
