"""Writes a model for embeddings of real shape with random weights (all-MiniLM-L6: 22 million parameters): a program for
the environment of the model scripts.

    python pooled_bench.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import string
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SIZE = 30522
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def main() -> None:
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    BertModel(
        BertConfig(vocab_size=SIZE, hidden_size=384, intermediate_size=1536, num_hidden_layers=6)
    ).save_pretrained(folder)
    words = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4)]
    vocabulary = [*SPECIAL, *words][:SIZE]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)
    # llama.cpp's converter and older versions of Transformers go by it.
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "BertTokenizer"}), encoding="utf-8")
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (place, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    for name in ("1_Pooling", "2_Normalize"):
        (folder / name).mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    lengths = {"max_seq_length": 256, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(lengths), encoding="utf-8")


if __name__ == "__main__":
    main()
