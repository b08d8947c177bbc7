"""Where the keys and values of a batch lie: in the CPU's memory, or in that of the device that runs the graph."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.device_buffers import DeviceBuffers, Place
from genai_server.engine.runners.kv_cache import Buffers
from genai_server.options.device import DeviceOptions
from genai_server.options.providers import PROVIDERS, provider

# The provider whose sessions copy within that memory.
_COPIES = {"cuda": "cuda"}


class BatchBuffers(Buffers, Protocol):
    """What the batched runner needs of them, beside what the slots do."""

    def bind(self, binding: Any, first: int, rows: int, part: str = "") -> None:
        """Bind the slots `first` to `first + rows` as past and as present, whose names begin with `part`."""
        ...

    def keep(self, binding: Any, output: str) -> None:
        """Have an output of a pass stay where the buffers are, for nobody reads it."""
        ...

    def write(self, slot: int, present: str, values: NDArray[Any]) -> None:
        """Put keys or values [1, kv_heads, tokens, head_size] of the first tokens into a slot."""
        ...


# Of a graph, rows and tokens of each.
MakeBuffers = Callable[[DecoderGraph, int, int], BatchBuffers]


def buffers_on(device: str, options: DeviceOptions) -> MakeBuffers:
    """What makes the buffers of a device that has a batch, on the number that its first provider is on."""
    memory = PROVIDERS[device.partition(":")[0]].memory
    if memory == "cpu":
        return CpuBuffers
    given = next((one.options for one in options.providers), {})
    place = Place(memory, int(given.get("device_id", "0")), provider(_COPIES[memory]).onnxruntime)
    return partial(DeviceBuffers, place)
