"""The options of ONNX Runtime's OpenVINO execution provider, which writes switches as `True` and `False`."""

import re

from genai_server.options.nvidia import POINTER
from genai_server.options.table import Kind, Row, Value, choice, flag, number, text

_HARDWARE = r"(CPU|NPU|GPU(\.\d+)?)"
_DEVICE_TYPE = re.compile(rf"{_HARDWARE}|(HETERO|MULTI|AUTO|BATCH):{_HARDWARE}(,{_HARDWARE})*")


def _device_type() -> Kind:
    def read(value: Value) -> str:
        found = str(value).upper()
        if not _DEVICE_TYPE.fullmatch(found):
            raise ValueError
        return found

    return Kind("CPU, GPU, GPU.0, NPU or a combination such as AUTO:GPU,CPU", read)


_SWITCH = flag("True", "False")

OPENVINO: tuple[Row, ...] = (
    Row("device_type", _device_type()),
    Row("device_id", text()),
    Row("device_luid", text()),
    Row("precision", choice("FP32", "FP16", "ACCURACY")),
    Row("num_of_threads", number(1)),
    Row("num_streams", number(1)),
    Row("cache_dir", text()),
    Row("load_config", text()),
    Row("model_priority", choice("LOW", "MEDIUM", "HIGH", "DEFAULT")),
    Row("layout", text()),
    Row("reshape_input", text()),
    Row("enable_opencl_throttling", _SWITCH),
    Row("enable_qdq_optimizer", _SWITCH),
    Row("enable_causallm", _SWITCH),
    Row("disable_dynamic_shapes", _SWITCH),
    Row("context", text(), impossible=POINTER),
)
