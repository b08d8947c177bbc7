"""Builds small random models of the families for embeddings and reranking, and what sentence-transformers gives for
them: a program for an environment with it.

    python pooled_families.py FOLDER

Each model is a directory in Hugging Face's form below FOLDER, with `expected.json` next to its files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "rain",
    "Paris is the capital of France.",
    "GRÜSSE 🙂 from Kraków, where it rained all day and all night, said the man with the hat.",
    "a",
    "word " * 90,
]
PAIRS = [(TEXTS[1], text) for text in TEXTS] + [("rain", TEXTS[2])]
LONGEST = 128
_SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
_CORPUS = [
    *TEXTS,
    "what is the capital",
    "query: passage: a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3",
    "yes no",
]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
LAST = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}


def wordpiece(first: str, last: str, *, shifted: bool) -> Tokenizer:
    """BERT's, or MPNet's with other names and pads of id 1."""
    special = [first, "[PAD]", last, "[UNK]", "[MASK]"] if shifted else ["[PAD]", "[UNK]", first, last, "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(_CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    types = 0 if shifted else 1
    middle = f" {last}" if shifted else ""
    _frame(tokenizer, first, last, f"{first} $A {last}", f"{first} $A {last}{middle} $B:{types} {last}:{types}")
    return tokenizer


def bert_words() -> Tokenizer:
    """BERT's."""
    return wordpiece("[CLS]", "[SEP]", shifted=False)


def mpnet_words() -> Tokenizer:
    """MPNet's."""
    return wordpiece("<s>", "</s>", shifted=True)


def unigram() -> Tokenizer:
    """XLM-R's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(
        _CORPUS, trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    )
    _frame(tokenizer, "<s>", "</s>", "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return tokenizer


def bytes_bpe(special: list[str]) -> Tokenizer:
    """The tokenizer of ModernBERT, and of decoders."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(_CORPUS * 3 + ["yes", "no"] * 9, trainer)
    return tokenizer


def modern() -> Tokenizer:
    tokenizer = bytes_bpe(["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"])
    _frame(tokenizer, "[CLS]", "[SEP]", "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")
    return tokenizer


def qwen(*, ends: bool) -> Tokenizer:
    """With `ends` as for embeddings: a token ends each text."""
    tokenizer = bytes_bpe(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    return tokenizer


def _frame(tokenizer: Tokenizer, first: str, last: str, single: str, pair: str) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def bert(kind: str = "BertModel", **more: Any) -> Callable[[Tokenizer], Any]:
    """A random model of a class of transformers for a tokenizer."""

    def make(tokenizer: Tokenizer) -> Any:
        model_class = getattr(transformers, kind)
        known = {name: tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>", "<|endoftext|>")}
        pad = next(id for id in known.values() if id is not None)
        config = model_class.config_class(vocab_size=tokenizer.get_vocab_size(), pad_token_id=pad, **_SIZES | more)
        return model_class(config).eval()

    return make


_LONG = {"max_position_embeddings": LONGEST + 2}
_DECODER = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": True}
_MODERN = {"max_position_embeddings": 512, "local_attention": 16, "bos_token_id": 0, "eos_token_id": 1}
_MODERN |= {"cls_token_id": 0, "sep_token_id": 1, "global_attn_every_n_layers": 2}
# By name: tokenizer, model, and the settings of the pooling module or None for a reranker.
FAMILIES: dict[str, tuple[Callable[[], Tokenizer], Callable[[Tokenizer], Any], dict[str, Any] | None]] = {
    "bert-cls": (bert_words, bert(), CLS),
    "bert-mean-prompts": (bert_words, bert(), MEAN | {"include_prompt": False}),
    "bert-dense": (bert_words, bert(), MEAN),
    "mpnet-mean": (mpnet_words, bert("MPNetModel", **_LONG), MEAN),
    "xlmr-mean": (unigram, bert("XLMRobertaModel", **_LONG), MEAN),
    "modernbert-cls": (modern, bert("ModernBertModel", **_MODERN), CLS),
    "nomic-mean": (bert_words, bert("NomicBertModel", max_position_embeddings=512), MEAN),
    "qwen3-last": (lambda: qwen(ends=True), bert("Qwen3ForCausalLM", **_DECODER), LAST),
    "qwen3-mean": (lambda: qwen(ends=True), bert("Qwen3ForCausalLM", **_DECODER), MEAN),
    "bert-reranker": (bert_words, bert("BertForSequenceClassification", num_labels=1), None),
    "xlmr-reranker": (unigram, bert("XLMRobertaForSequenceClassification", num_labels=1, **_LONG), None),
    "modernbert-reranker": (modern, bert("ModernBertForSequenceClassification", num_labels=1, **_MODERN), None),
    "qwen3-reranker": (lambda: qwen(ends=False), bert("Qwen3ForCausalLM", **_DECODER), None),
}  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    for name, (make_tokenizer, make_model, pooling) in FAMILIES.items():
        torch.manual_seed(len(name))
        try:
            tokenizer = make_tokenizer()
            model = make_model(tokenizer)
            for parameter in model.parameters():  # random weights of the usual size would make all vectors alike
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.15)
            write(folder / name, tokenizer, model, pooling)
            expected = embeddings(folder / name) if pooling is not None else scores(folder / name, tokenizer)
            (folder / name / "expected.json").write_text(json.dumps(expected))
        except Exception as error:  # a version of the libraries that lacks a family
            print(f"{name}: {type(error).__name__}: {error}", flush=True)


def write(folder: Path, tokenizer: Tokenizer, model: Any, pooling: dict[str, Any] | None) -> None:
    """A directory in Hugging Face's form."""
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    names = {"pad_token": ("[PAD]", "<pad>", "<|endoftext|>"), "unk_token": ("[UNK]", "<unk>")}
    names |= {"cls_token": ("[CLS]", "<s>"), "sep_token": ("[SEP]", "</s>"), "eos_token": ("<|im_end|>",)}
    given = {
        name: next(token for token in known if tokenizer.token_to_id(token) is not None)
        for name, known in names.items()
        if any(tokenizer.token_to_id(token) is not None for token in known)
    }
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if has_types else ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LONGEST, model_input_names=inputs, **given
    ).save_pretrained(folder)
    if pooling is None:
        return
    kinds = ["Transformer", "Pooling", *(["Dense"] if "dense" in folder.name else []), "Normalize"]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for path in paths[1:]:
        (folder / path).mkdir()
    (folder / paths[1] / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **pooling}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST, "do_lower_case": False}))
    if "prompts" in folder.name:
        prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    if "dense" in folder.name:
        from sentence_transformers.models import Dense

        Dense(64, 48).save(str(folder / paths[2]))


def embeddings(folder: Path) -> dict[str, Any]:
    """What sentence-transformers gives, by the name of the prompt."""
    model = SentenceTransformer(str(folder), device="cpu")
    names = [None, "query"] if "prompts" in folder.name else [None]
    found = [model.encode(TEXTS, prompt_name=name).tolist() for name in names]
    return {"texts": TEXTS, "prompts": names, "vectors": found}


def scores(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """What sentence-transformers gives for pairs; for a decoder what the makers' own lines give."""
    if "qwen3" not in folder.name:
        return {"pairs": PAIRS, "scores": CrossEncoder(str(folder), device="cpu").predict(PAIRS).tolist()}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    yes, no = (tokenizer.token_to_id(word) for word in ("yes", "no"))
    task = "Given a web search query, retrieve relevant passages that answer the query"
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    found = []
    for query, document in PAIRS:
        body = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
        ids = torch.tensor([tokenizer.encode(before + body + after).ids])
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        found.append(torch.softmax(torch.stack([logits[no], logits[yes]]), 0)[1].item())
    return {"pairs": PAIRS, "scores": found}


if __name__ == "__main__":
    main()
