"""Runs llama.cpp's converter of checkpoints, with the folders of its modules as the first two arguments.

The converter knows published vocabularies by their hash. The third argument says as whose this one is split. Run with
the interpreter of llama.cpp's environment, which has nothing of genai-server's.
"""

import importlib
import runpy
import sys

sys.path[:1] = [sys.argv.pop(1), sys.argv.pop(1)]
words = sys.argv.pop(1)
importlib.import_module("conversion.base").TextModel.get_vocab_base_pre = lambda self, tokenizer: words
runpy.run_module("convert_hf_to_gguf", run_name="__main__")
