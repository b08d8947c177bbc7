"""A model builder that writes the demo model, for tests of the code around it."""

from pathlib import Path

from tests.running_server import DEMO

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
print("Saving ONNX model in", value("-o"))
"""
MODULES = {
    "torch.py": "",
    "transformers.py": "",
    "onnx_ir.py": "",
    "onnxruntime_genai/__init__.py": "",
    "onnxruntime_genai/models/__init__.py": "",
    "onnxruntime_genai/models/builder.py": BUILDER,
}


def fake_builder(folder: Path) -> Path:
    """Write the modules into a folder for PYTHONPATH; returns it."""
    for name, text in MODULES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
