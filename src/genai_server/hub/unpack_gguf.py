"""Unpacks a GGUF file into a directory in Hugging Face's format. This is a program for the Python interpreter that
`export` uses.

    python unpack_gguf.py FILE TARGET [16|32]

Transformers reads the file, whatever its quantization, with its tokenizer and chat template. This program adds what
Transformers leaves out, and refuses files that would become a different model: it then prints `refused: ` and the
reason. Weights are written in 16 or 32 bits; without this argument, only the files that describe the model are written.
Of this package the program imports only gguf_tokenizers.py next to it, because the package may be missing in the
interpreter's environment.
"""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

if TYPE_CHECKING:
    from genai_server.hub import gguf_tokenizers
else:
    import gguf_tokenizers

# Architectures whose logits were compared with PyTorch's (docs/evidence/models.md).
_ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "lfm2")
_MODELS: Any = AutoModelForCausalLM
_CLASSES: Any = MODEL_FOR_CAUSAL_LM_MAPPING
# The type of tokens that structure a prompt.
_CONTROL = 3
# The tokenizers for which a file names the rule that splits text.
_TOKENIZER_WITH_RULE = "gpt2"
# Llama 3's rope, which a GGUF file has as factors only.
_LLAMA_3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_ROPE_FACTORS = "rope_freqs.weight"
_LONG_ROPE = ("rope_factors_long.weight", "rope_factors_short.weight")
_TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer_config.json", "chat_template.jinja")


def main() -> None:
    """Unpack the GGUF file that the command line names into a directory in Hugging Face's format."""
    path, target, bits = Path(sys.argv[1]), Path(sys.argv[2]), "".join(sys.argv[3:])
    target.mkdir(parents=True, exist_ok=True)
    print("Reading GGUF file", flush=True)
    try:
        gguf = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        refuse(f"it is damaged, or no GGUF file ({error})")
    architecture = check(gguf, path)
    config = read_config(gguf, path, architecture)
    if bits:
        correct_rope(gguf, config)
    save_tokenizer(gguf, path, target)
    if not bits:
        config.save_pretrained(target)
        return
    if all(tensor.tensor_type == GGMLQuantizationType.F32 for tensor in gguf.tensors):
        bits = "32"
    print(f"Reading weights into {bits} bits", flush=True)
    model, loading = _MODELS.from_pretrained(
        path.parent,
        gguf_file=path.name,
        config=config,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32 if bits == "32" else torch.float16,
        output_loading_info=True,
    )
    check_weights(gguf, model, loading)
    print("Saving weights", flush=True)
    with torch.device("meta"):  # Transformers does not save a model that it counts as quantized
        plain = _MODELS.from_config(config, dtype=model.dtype)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.save_pretrained(target)


def refuse(reason: str) -> NoReturn:
    """End the program with exit status 1, after printing `reason`, why no model can be built from the file, in the form
    that `export` recognizes.
    """
    print(f"refused: {reason}", flush=True)
    raise SystemExit(1)


def value(gguf: GGUFReader, key: str, otherwise: Any = None) -> Any:
    """Return the value of the key `key` in the metadata of a GGUF file, or `otherwise` if the file lacks it."""
    field = gguf.get_field(key)
    return otherwise if field is None else field.contents()


def check(gguf: GGUFReader, path: Path) -> str:
    """Check that Transformers can read the GGUF file correctly, and return the name of its architecture, such as
    "llama". For other files, ends the program with the reason (`refuse`).

    `path` is the file's path; a tokenizer next to the file is used in place of the file's own.
    """
    architecture = str(value(gguf, "general.architecture", ""))
    kind = value(gguf, "general.type", "model")
    if kind != "model":
        refuse(f"it is no model, but of the type {kind}")
    if value(gguf, "split.count", 0) > 1:
        refuse("it is one of several parts; join them with llama-gguf-split --merge")
    if architecture not in _ARCHITECTURES:
        refuse(f"its architecture is {architecture or 'missing'}; known are {', '.join(_ARCHITECTURES)}")
    scaling = value(gguf, f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        refuse(f"its rope is scaled ({scaling}), which Transformers leaves out")
    names = {tensor.name for tensor in gguf.tensors}
    if names & set(_LONG_ROPE):
        refuse("its rope has short and long factors, which Transformers leaves out")
    rule = value(gguf, "tokenizer.ggml.pre", "default")
    has_own = (path.parent / _TOKENIZER).is_file()
    if (
        value(gguf, "tokenizer.ggml.model") == _TOKENIZER_WITH_RULE
        and rule not in gguf_tokenizers.RULES
        and not has_own
    ):
        refuse(
            f"the rule by which its tokenizer splits text is not known here ({rule}); "
            f"put {' and '.join(_TOKENIZER_FILES[:2])} of the original model next to it"
        )
    return architecture


def read_config(gguf: GGUFReader, path: Path, architecture: str) -> Any:
    """Return the Transformers configuration of the model in a GGUF file, completed by the values that Transformers does
    not read from the file, such as end tokens.
    """
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config.architectures = [_CLASSES[type(config)].__name__]
    if (head := value(gguf, f"{architecture}.attention.key_length")) is not None:
        config.head_dim = head
    ends = [value(gguf, f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = sorted({end for end in ends if end is not None})
    config.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    if architecture == "gemma2":
        correct_gemma2(gguf, config)
    if architecture == "phi3":
        config.original_max_position_embeddings = config.max_position_embeddings  # it is no long rope
    return config


def correct_rope(gguf: GGUFReader, config: Any) -> None:
    """If the GGUF file has frequency factors of the rope (rotary position embedding), set in `config` the parameters of
    Llama 3's rope from which these factors result. Ends the program (`refuse`) if they are not Llama 3's.
    """
    for tensor in gguf.tensors:
        if tensor.name == _ROPE_FACTORS:
            config.rope_parameters = llama_3_rope(tensor.data, config)


def correct_gemma2(gguf: GGUFReader, config: Any) -> None:
    """Set Gemma 2's limits of attention scores and logits (soft caps) in `config`. Ends the program (`refuse`) for the
    model size whose query scale is not in the file.
    """
    if config.head_dim != 256:
        refuse("the scale of its queries is not in the file, as in Gemma 2 27B")
    config.query_pre_attn_scalar = 256
    config.attn_logit_softcapping = value(gguf, "gemma2.attn_logit_softcapping", config.attn_logit_softcapping)
    config.final_logit_softcapping = value(gguf, "gemma2.final_logit_softcapping", config.final_logit_softcapping)


def llama_3_rope(factors: Any, config: Any) -> dict[str, Any]:
    """Return the parameters of Llama 3's rope (rotary position embedding) with which Transformers computes the
    frequency factors `factors`. Ends the program (`refuse`) if no such parameters give these factors.
    """
    theta = config.rope_parameters["rope_theta"]
    parameters = {"rope_type": "llama3", "rope_theta": theta, "factor": float(np.max(factors)), **_LLAMA_3_ROPE}
    low, high = _LLAMA_3_ROPE["low_freq_factor"], _LLAMA_3_ROPE["high_freq_factor"]
    dimensions = 2 * len(factors)
    waves = 2 * math.pi * theta ** (np.arange(0, dimensions, 2) / dimensions)
    turns = _LLAMA_3_ROPE["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / parameters["factor"] + smooth)
    if not np.allclose(factors, expected, rtol=1e-3):
        refuse("its rope has factors that are not Llama 3's")
    return parameters


def save_tokenizer(gguf: GGUFReader, path: Path, target: Path) -> None:
    """Write a tokenizer for the model to the directory `target`: the one in files next to the GGUF file, or else the
    one that the GGUF file contains. Ends the program (`refuse`) if Transformers would read the latter wrongly.
    """
    if (path.parent / _TOKENIZER).is_file():
        for name in _TOKENIZER_FILES:
            if (path.parent / name).is_file():
                (target / name).write_bytes((path.parent / name).read_bytes())
        return
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokens, types = value(gguf, "tokenizer.ggml.tokens", []), value(gguf, "tokenizer.ggml.token_type", [])
    template = value(gguf, "tokenizer.chat_template", "")
    marks = [token for token, kind in zip(tokens, types, strict=False) if kind == _CONTROL and token in template]
    if wrong := [mark for mark in marks if tokenizer.convert_tokens_to_ids(mark) != tokens.index(mark)]:
        refuse(f"Transformers does not know {wrong[0]}, which its chat template has, for one token")
    tokenizer.save_pretrained(target)
    if value(gguf, "tokenizer.ggml.model") == _TOKENIZER_WITH_RULE:
        saved = json.loads((target / _TOKENIZER).read_text(encoding="utf-8"))
        gguf_tokenizers.RULES[value(gguf, "tokenizer.ggml.pre", "default")].apply(saved)
        (target / _TOKENIZER).write_text(json.dumps(saved, ensure_ascii=False, indent=2), encoding="utf-8")


def check_weights(gguf: GGUFReader, model: Any, loading: dict[str, Any]) -> None:
    """End the program (`refuse`) if the GGUF file lacks weights of the loaded model, or has weights that Transformers
    did not use. `loading` is Transformers' report on loading the model.
    """
    if missing := sorted(loading["missing_keys"]):
        refuse(f"it lacks weights, such as {missing[0]}")
    num_read = sum(parameter.numel() for parameter in model.parameters())
    expected = sum(int(tensor.n_elements) for tensor in gguf.tensors if tensor.name != _ROPE_FACTORS)
    if num_read != expected:
        refuse(f"Transformers reads {num_read} of its {expected} weights")


if __name__ == "__main__":
    main()
