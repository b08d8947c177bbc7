"""onnxruntime-genai's model builder with a fix for a bug of version 0.18, which Gemma 3 needs.

Run in `.venv-models` like the builder itself (`python -m _models.patched_builder -i … -o …`).
"""

from __future__ import annotations

import runpy
from typing import Any

import onnxruntime_genai.models  # noqa: F401  (its folder is where the builders are imported from)
from builders import Gemma3Model


def mend_gemma3() -> None:
    """Transformers 5 keeps a rope for each kind of layer; the builder expects a single one, with one theta."""
    original = Gemma3Model.make_config_init

    def make_config_init(self: Any, config: Any) -> None:
        text = config.get_text_config()
        by_kind = text.rope_parameters
        config.rope_local_base_freq = by_kind["sliding_attention"]["rope_theta"]
        text.rope_parameters = by_kind["full_attention"]
        original(self, config)

    Gemma3Model.make_config_init = make_config_init


if __name__ == "__main__":
    mend_gemma3()
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)
