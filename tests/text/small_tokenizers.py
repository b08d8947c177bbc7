"""Minimal tokenizers of the kinds that models have."""

import string
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPACE = "▁"


def sentencepiece(folder: Path) -> Path:
    """Like Llama 2 and Mistral: a blank before the text, bytes for unknown characters, `<s>` at the start."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    tokens += [*string.ascii_letters, *string.punctuation, f"{SPACE}h", "hi", f"{SPACE}hi"]
    merges = [(SPACE, "h"), ("h", "i"), (f"{SPACE}h", "i")]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return _save(tokenizer, folder)


def words(folder: Path) -> Path:
    """Complete words that the library joins with blanks; `[CLS] … [SEP]` around a text."""
    vocabulary = {token: id for id, token in enumerate(["[UNK]", "[CLS]", "[SEP]", "one", "two", "##s"])}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return _save(tokenizer, folder)


def compatible(folder: Path) -> Path:
    """Bytes of a text in its compatibility form, which makes full-width letters ordinary, also in special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=True)])
    tokenizer.add_tokens(["<tool>", "é"])
    return _save(tokenizer, folder)


def _save(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
