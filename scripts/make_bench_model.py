"""Build a random-weight model of real shape for speed work: 0.4 B parameters, Qwen2-like, or a shape that is named.

Speed does not depend on the values of the weights. What the model writes is random but readable:
printable ASCII, never an end-of-turn token, so every generation runs to its limit.
"""

from __future__ import annotations

import argparse
import glob
import os
import sysconfig
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _models.environment import ensure_environment
from _models.family import Family, add_head, new_model, read_families

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

WORDS = Path(__file__).with_name("_training") / "words" / "words.txt"
VOCABULARY, CONTEXT = 32_760, 32_768
SHAPES = read_families("bench_shapes")
# Its settings have the ids of tokens for images, which are behind the tokenizer's three others.
FOR_IMAGES = "qwen-3-vl"
# Width and layers. Their vocabulary is Whisper's: 50,257 tokens of text, 99 languages, 1,501 timestamps.
SPEECH_SHAPES = {"whisper-base": (512, 6), "whisper-small": (768, 12)}
SPEECH_TEXT_TOKENS = 50_257
# The projections of a layer that write to the residual stream.
_OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "w2.weight", "experts.down_proj")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="where the model directory goes")
    parser.add_argument("--shape", default="dense", choices=[*SHAPES, *SPEECH_SHAPES], help="(dense)")
    parser.add_argument("--layers", type=int, metavar="N", help="instead of the shape's own number")
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
    if arguments.shape in SPEECH_SHAPES and arguments.vocabulary != VOCABULARY:
        parser.error(f"--shape={arguments.shape}: its vocabulary is Whisper's")
    ensure_environment()
    with tempfile.TemporaryDirectory() as temporary:
        source = arguments.checkpoint or Path(temporary)
        how = {"precision": arguments.precision, "block_size": arguments.block_size}
        if arguments.shape in SPEECH_SHAPES:
            make_speech(arguments, source, how)
        else:
            make_decoder(arguments, source, how)
    print(f"wrote {arguments.out}")


def make_decoder(arguments: argparse.Namespace, source: Path, how: dict[str, Any]) -> None:
    """Write a model for text, or for text and images."""
    from _models.export import export
    from _models.graphs import write_bench_vision
    from _models.media import QWEN, complete, template
    from _models.tokenizer import pad_vocabulary, save_tokenizer, train_tokenizer

    shape, takes_images = SHAPES[arguments.shape], arguments.shape == FOR_IMAGES
    tokenizer = train_tokenizer(_standard_library(), VOCABULARY, QWEN.marks if takes_images else ())
    tokenizer = pad_vocabulary(tokenizer, arguments.vocabulary)
    source.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, source, template("qwen" if takes_images else "chatml"), CONTEXT)
    model = random_model(tokenizer, shape, arguments.layers)
    # numpy, which reads the embeddings of a model for images, has no such type.
    model = model if takes_images else model.bfloat16()
    model.save_pretrained(source)
    if "mtp_num_hidden_layers" in shape.settings:
        add_head(model.config.get_text_config(), source, lambda _, parameter: parameter.normal_(std=0.02))
    export(source, arguments.out, options=shape.options, **how)
    if takes_images:
        medium, write = QWEN.with_pixels(64 * 64, 1024 * 1024), partial(write_bench_vision, patch=QWEN.patch)
        complete(medium, "qwen3_vl", source, arguments.out, write)


def make_speech(arguments: argparse.Namespace, source: Path, how: dict[str, Any]) -> None:
    """Write a model for speech."""
    from _models.random_speech import export_random_speech
    from _models.speech_files import SpeechLayout, speech_settings
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    width, layers = SPEECH_SHAPES[arguments.shape]
    settings = speech_settings(width, arguments.layers or layers, heads=width // 64, inner=4 * width)
    texts, layout = (_standard_library(), SPEECH_TEXT_TOKENS), SpeechLayout(list(LANGUAGES)[:99])
    # Enough words for a window, none of them twice, so that a transcript is not taken for a repetition.
    recited = " ".join(["", *[word for word in WORDS.read_text(encoding="utf-8").split() if word.isalpha()][::3]])
    export_random_speech(source, arguments.out, texts, settings, layout, recited=recited, **how)


def _standard_library() -> list[str]:
    """Python's own sources: enough different words for a vocabulary of real size."""
    pattern = os.path.join(sysconfig.get_path("stdlib"), "**", "*.py")
    paths = [path for path in sorted(glob.glob(pattern, recursive=True)) if "site-packages" not in path]
    return [Path(path).read_text(encoding="utf-8", errors="ignore") for path in paths]


def random_model(tokenizer: Tokenizer, shape: Family, layers: int | None = None) -> PreTrainedModel:
    """Random weights that can only choose readable tokens.

    Dimension 0 of the residual stream is 1 for every token and no layer writes to it. The output
    rows of unreadable tokens read that dimension alone, with a large negative weight; all other
    rows ignore it.
    """
    import torch
    from _models.tokenizer import END_OF_TEXT_ID, TURN_END_ID, is_readable

    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    number = layers or shape.settings["num_hidden_layers"]
    settings = shape.settings | {
        "num_hidden_layers": number,
        "vocab_size": size,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": TURN_END_ID,
        "pad_token_id": END_OF_TEXT_ID,
    }
    if shape.layers:
        settings["layer_types"] = [shape.layers[layer % len(shape.layers)] for layer in range(number)]
    outer = None if shape.outer is None else {"tie_word_embeddings": False, **shape.outer}
    model = new_model(shape, settings, outer)
    unreadable = torch.tensor([not is_readable(tokenizer, token) for token in range(size)])
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.normal_()  # the last token decides most: text that varies, in long cycles
        embeddings[:, 0] = 1.0
        for name, parameter in model.named_parameters():
            if name.endswith(_OUTPUTS):
                parameter[..., 0, :] = 0.0
        output = model.lm_head.weight
        output.normal_(std=0.1)  # logits of scale 3, as a trained model's
        output[:, 0] = 0.0
        output[unreadable] = 0.0
        output[unreadable, 0] = -1000.0
    return model


if __name__ == "__main__":
    main()
