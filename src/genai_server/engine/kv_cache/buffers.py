"""Chooses the memory for a batch's keys and values: the CPU's, or that of the device which runs the graph."""

from collections.abc import Callable
from functools import partial

from genai_server.engine.decoder_graph import DecoderGraph
from genai_server.engine.kv_cache.cpu_buffers import CpuBuffers
from genai_server.engine.kv_cache.paged_buffers import PagedBuffers, Place
from genai_server.options.device import DeviceOptions, device_id
from genai_server.options.providers import PROVIDERS, provider

# For each kind of device memory, the provider whose sessions copy within it.
_COPIES = {"cuda": "cuda"}


BatchBuffers = CpuBuffers | PagedBuffers
# Takes the graph, the number of rows, and the tokens of each row.
MakeBuffers = Callable[[DecoderGraph, int, int], BatchBuffers]


def buffers_on(device: str, options: DeviceOptions, most_blocks: int) -> MakeBuffers:
    """What makes the buffers of a device with a batch, on other devices than the CPU of at most `most_blocks` blocks.

    The first provider's `device_id` chooses the device.
    """
    memory = PROVIDERS[device.partition(":")[0]].memory
    if memory == "cpu":
        return CpuBuffers
    place = Place(memory, device_id(options), provider(_COPIES[memory]).onnxruntime)
    return partial(PagedBuffers, place, most_blocks)
