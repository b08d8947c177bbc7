"""A model builder that writes the demo model, for tests of the code around it."""

from pathlib import Path

from tests.running_server import DEMO

BASE = """
class Model:
    load_weights = make_attention_input_proj = is_qkv_projection_packable = make_packed_matmul_float_class = None
    make_matmul_float = make_embedding_lookup = save_model = None
"""
# Substitutes for the libraries of the extra `export`, which take gigabytes: modules, and a builder with its options.
BUILDER = f"""
import json, os, shutil, sys
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
print("Reading embedding layer")
print("Reading layer 0")
print("a line for the log only")
print(os.environ["ORT_DISABLE_TELEMETRY"], os.environ["HF_HUB_OFFLINE"], arguments)
if "fail=1" in arguments:
    raise SystemExit("out of something")
for name in os.listdir({str(DEMO)!r}):
    if "lose=" + name not in arguments:
        shutil.copy(os.path.join({str(DEMO)!r}, name), value("-o"))
for option in arguments:
    if option.startswith("type="):
        path = os.path.join(value("-o"), "genai_config.json")
        config = json.load(open(path))
        config["model"]["type"] = option.removeprefix("type=")
        json.dump(config, open(path, "w"))
if "break=1" in arguments:
    open(os.path.join(value("-o"), "model.onnx"), "wb").close()
if "share=1" in arguments:
    path = os.path.join(value("-o"), "genai_config.json")
    config = json.load(open(path))
    config["model"]["decoder"]["shared_initializers"] = []
    json.dump(config, open(path, "w"))
print("Saving ONNX model in", value("-o"))
"""
# mobius, which does not write what generation_config.json says.
MOBIUS = f"""
import shutil
def main(arguments):
    print("mobius is called with", arguments)
    shutil.copytree({str(DEMO)!r}, arguments[3], dirs_exist_ok=True)
"""
MODULES = {
    "mobius/__init__.py": "",
    "mobius/__main__.py": MOBIUS,
    "torch.py": "float16 = bfloat16 = None\n",
    "transformers.py": "",
    "onnx_ir.py": "",
    "onnxruntime_genai/__init__.py": "",
    "onnxruntime_genai/models/__init__.py": "",
    "onnxruntime_genai/models/builder.py": BUILDER,
    # Parts of the builder that build_graph.py changes.
    "builders/__init__.py": "",
    "builders/base.py": BASE,
    "builders/gemma.py": "class Gemma3Model:\n    pass\n",
}
# Substitutes for what unpacks GGUF files: a file has a description in JSON, and its reason for a refusal.
UNPACKER = """
import json, os, sys
from types import SimpleNamespace as _Names

class GGUFReader:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.found = json.loads(file.read().rstrip(b"\\0"))
        self.tensors = [_Names(name="output.weight", tensor_type="Q4_0", n_elements=0)]
    def get_field(self, key):
        value = self.found.get(key)
        return value if value is None else _Names(contents=lambda: value)

class GGMLQuantizationType:
    F32 = 0

MODEL_ARCH_NAMES = {0: "llama"}

def get_tensor_name_map(kind, layers):
    return None
"""
TRANSFORMERS = """
import json, os
from contextlib import contextmanager

class _Config:
    rope_parameters, max_position_embeddings = {}, 8
    def save_pretrained(self, target):
        with open(os.path.join(target, "config.json"), "w") as file:
            json.dump({"architectures": self.architectures, "eos_token_id": self.eos_token_id}, file)

class _Found:
    dtype = None
    def __init__(self, config):
        self.config = config
    def parameters(self):
        return []
    def state_dict(self):
        return {}
    def load_state_dict(self, state, assign):
        assert assign
    def save_pretrained(self, target):
        self.config.save_pretrained(target)
        open(os.path.join(target, "model.safetensors"), "w").close()

class LlamaForCausalLM:
    pass

class AutoConfig:
    from_pretrained = staticmethod(lambda folder, gguf_file: _Config())

class AutoModelForCausalLM:
    from_pretrained = staticmethod(lambda *_, config, **__: (_Found(config), {"missing_keys": set()}))
    from_config = staticmethod(lambda config, dtype: _Found(config))

class AutoTokenizer:
    @staticmethod
    def from_pretrained(folder, gguf_file):
        return AutoTokenizer()
    def save_pretrained(self, target):
        with open(os.path.join(target, "tokenizer.json"), "w") as file:
            json.dump({"of": "the GGUF file"}, file)

class GgufConfig:
    def __init__(self, dequantize):
        assert dequantize

MODEL_FOR_CAUSAL_LM_MAPPING = {_Config: LlamaForCausalLM}
"""
TORCH = """
from contextlib import nullcontext
float16 = float32 = bfloat16 = None
device = lambda name: nullcontext()
"""
GGUF_MODULES = {
    "torch.py": TORCH,
    "gguf.py": UNPACKER,
    "accelerate.py": "",
    "transformers/__init__.py": TRANSFORMERS,
    "transformers/integrations/__init__.py": "",
    "transformers/integrations/gguf/__init__.py": "",
}


def fake_builder(folder: Path, *, with_gguf: bool = False) -> Path:
    """Write the modules into a folder for PYTHONPATH; returns it."""
    for name, text in (MODULES | (GGUF_MODULES if with_gguf else {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
