"""Build a random-weight model of real shape (0.4 B parameters, Qwen2-like), for speed work.

Speed does not depend on the values of the weights. What the model writes is random but readable:
printable ASCII, never an end-of-turn token, so every generation runs to its limit.
"""

from __future__ import annotations

import argparse
import glob
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from _models.environment import ensure_environment

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen2ForCausalLM

VOCABULARY, CONTEXT = 32_760, 8_192
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="where the model directory goes")
    parser.add_argument(
        "--block-size", type=int, default=128, choices=(32, 128), help="weights per scale (default 128)"
    )
    parser.add_argument("--precision", default="int4", choices=("int4", "int8", "fp32"))
    parser.add_argument(
        "--vocabulary", type=int, default=VOCABULARY, metavar="N", help=f"number of tokens (default {VOCABULARY})"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="also keep what it is exported from")
    arguments = parser.parse_args()
    if arguments.vocabulary < VOCABULARY:
        parser.error(f"--vocabulary={arguments.vocabulary}: at least {VOCABULARY}")
    ensure_environment()

    from _models.export import export
    from _models.tokenizer import pad_vocabulary, save_tokenizer, train_tokenizer

    tokenizer = pad_vocabulary(train_tokenizer(_standard_library(), VOCABULARY), arguments.vocabulary)
    with tempfile.TemporaryDirectory() as temporary:
        source = arguments.checkpoint or Path(temporary)
        source.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, source, CHATML, CONTEXT)
        random_model(tokenizer).save_pretrained(source)
        export(source, arguments.out, precision=arguments.precision, block_size=arguments.block_size)
    print(f"wrote {arguments.out}")


def _standard_library() -> list[str]:
    """Python's own sources: enough different words for a vocabulary of real size."""
    pattern = os.path.join(sysconfig.get_path("stdlib"), "**", "*.py")
    paths = [path for path in sorted(glob.glob(pattern, recursive=True)) if "site-packages" not in path]
    return [Path(path).read_text(encoding="utf-8", errors="ignore") for path in paths]


def random_model(tokenizer: Tokenizer) -> Qwen2ForCausalLM:
    """Random weights that can only choose readable tokens.

    Dimension 0 of the residual stream is 1 for every token and no layer writes to it. The output
    rows of unreadable tokens read that dimension alone, with a large negative weight; all other
    rows ignore it.
    """
    import torch
    from _models.tokenizer import END_OF_TEXT_ID, TURN_END_ID, is_readable
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size,
        hidden_size=896,
        num_hidden_layers=24,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=TURN_END_ID,
        pad_token_id=END_OF_TEXT_ID,
    )
    model = Qwen2ForCausalLM(config)
    unreadable = torch.tensor([not is_readable(tokenizer, token) for token in range(size)])
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()  # the last token decides most: text that varies, in long cycles
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        output = model.lm_head.weight
        output.normal_(std=0.1)  # logits of scale 3, as a trained model's
        output[:, 0] = 0.0
        output[unreadable] = 0.0
        output[unreadable, 0] = -1000.0
    model.bfloat16()
    return model


if __name__ == "__main__":
    main()
