"""The rules by which llama.cpp splits text before byte-pair encoding, by their names in GGUF files
(`tokenizer.ggml.pre`).

The regular expressions of a rule are applied one after the other: each splits the parts into which the text was split
before, at its matches, which become parts of their own. This module imports the standard library only, because
unpack_gguf.py uses it in an environment that may lack this package.
"""

from typing import Any, NamedTuple

_ENDINGS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN_2 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN_3_5 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
# llama.cpp writes these two without classes of upper and lower case, which differs for few letters; the original
# tokenizers, with which the models were trained, are as here.
_TEKKEN = f"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_GPT_4O = (
    f"{_FIRST}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_FIRST}{_UPPER}+{_LOWER}*{_ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_DIGIT = r"\p{N}"


class Rule(NamedTuple):
    """A rule by which a tokenizer splits text before byte-pair encoding: regular expressions that are applied one after
    the other. The table RULES has the rule for each name in GGUF files.
    """

    expressions: tuple[str, ...]
    # Whether a part of the text that is a token as a whole is not built from merges.
    ignores_merges: bool = False

    def apply(self, tokenizer: dict[str, Any]) -> None:
        """Write this rule into `tokenizer`, the parsed contents of a tokenizer.json, which is changed."""
        splits = [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
            for expression in self.expressions
        ]
        bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, bytes_only]}
        if self.ignores_merges and "model" in tokenizer:
            tokenizer["model"]["ignore_merges"] = True


_RULES = {
    Rule((_GPT_2,)): ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"),
    Rule((_DIGIT, _GPT_2)): (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    Rule((_LLAMA_3,), ignores_merges=True): (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    ),
    Rule((_LLAMA_3,)): ("dbrx", "smaug-bpe"),
    Rule((_QWEN_2,)): ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
    Rule((_QWEN_3_5,)): ("qwen35",),
    Rule((_TEKKEN,), ignores_merges=True): ("tekken",),
    Rule((_GPT_4O,)): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
}
RULES = {name: rule for rule, names in _RULES.items() for name in names}
