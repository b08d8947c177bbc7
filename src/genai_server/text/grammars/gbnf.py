"""Grammars in GBNF, the form of llama.cpp, SGLang and XGrammar (llama.cpp, "GBNF Guide"), as grammars of Lark."""

import re

from genai_server.errors import InvalidField

# Characters; the conversion takes some seconds for a million.
MAX_LENGTH = 32_768
_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)


def is_gbnf(source: str) -> bool:
    """Whether a grammar has GBNF's first rule."""
    return _ROOT.search(source) is not None


def to_lark(source: str, *, param: str) -> str:
    """The same grammar in Lark, which begins with the rule `start`. Raises InvalidField, naming `param`."""
    # Loads a native library, which few requests need.
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(source) > MAX_LENGTH:
        raise InvalidField(
            f"{param} must have at most {MAX_LENGTH} characters if it is GBNF, given {len(source)}", param=param
        )
    try:
        return gbnf_to_lark(source)
    except RecursionError:
        raise InvalidField(f"{param}: the groups of the grammar are nested too deeply", param=param) from None
    except Exception as error:  # the library raises Exception itself, and IndexError at an unexpected end
        raise InvalidField(f"{param} is not a grammar of GBNF: {error}", param=param) from None
