"""A program that tests which execution providers of ONNX Runtime can be loaded on this machine: `python -m
genai_server.engine.model.provider_trial`.

ONNX Runtime may contain a provider whose own libraries are missing, which only a session shows. Since a provider may
crash the process, the test runs in a process of its own. The program prints one JSON object, which has null for each
provider that can be loaded, and the reason for each one that cannot.
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
    """Try to load each execution provider that ONNX Runtime contains, and print the results as one line of JSON: for
    each provider, by this server's name, null or the reason why it cannot be loaded.
    """
    onnxruntime.set_default_logger_severity(_ERRORS)
    available = onnxruntime.get_available_providers()
    errors = {
        name: load_error(definition.onnxruntime)
        for name, definition in PROVIDERS.items()
        if definition.onnxruntime in available
    }
    sys.stdout.write(json.dumps(errors) + "\n")


def load_error(provider: str) -> str | None:
    """Return the reason why an execution provider cannot be loaded; None if it can. `provider` is ONNX Runtime's name
    for it, such as "CUDAExecutionProvider".
    """
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
