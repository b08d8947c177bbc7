"""`python -m genai_server.engine.model.provider_trial`: tests which execution providers of ONNX Runtime load here.

ONNX Runtime may include a provider whose own libraries are missing, and only a session shows that. A provider may crash
the process, so this is a separate one. It prints one line of JSON: for each provider null, or the reason for a failure.
"""

import json
import sys

import onnx
import onnxruntime
from onnx import TensorProto, helper

from genai_server.options.providers import PROVIDERS

_ERRORS = 4  # ONNX Runtime's level of severity: fatal
_IR_VERSION, _OPSET = 8, 17


def main() -> None:
    """Try each provider that ONNX Runtime was built with, on a graph of one node, and print the results."""
    onnxruntime.set_default_logger_severity(_ERRORS)
    available = onnxruntime.get_available_providers()
    found = {name: load_error(known.onnxruntime) for name, known in PROVIDERS.items() if known.onnxruntime in available}
    sys.stdout.write(json.dumps(found) + "\n")


def load_error(provider: str) -> str | None:
    """Why an execution provider, by ONNX Runtime's name for it, does not load; None if it does."""
    try:
        session = onnxruntime.InferenceSession(_graph(), providers=[provider], enable_fallback=0)
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        return str(error)
    return None if provider in session.get_providers() else "its own libraries do not load"


def _graph() -> bytes:
    value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")}
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "trial", [value["x"]], [value["y"]])
    model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", _OPSET)])
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


if __name__ == "__main__":
    main()
