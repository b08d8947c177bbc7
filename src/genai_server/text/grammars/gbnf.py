"""Converts GBNF, the grammar format of llama.cpp, SGLang and XGrammar (llama.cpp, "GBNF Guide"), to Lark."""

import re

from genai_server.errors import InvalidField

# In characters. Converting a million takes several seconds.
MAX_LENGTH = 32_768
_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)


def is_gbnf(source: str) -> bool:
    """Whether a grammar has GBNF's root rule."""
    return _ROOT.search(source) is not None


def to_lark(source: str, *, param: str) -> str:
    """Convert a grammar to Lark with the root rule `start`. Raises InvalidField, naming `param`."""
    # Imported here because it loads a native library that few requests need.
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
        raise InvalidField(f"{param} is not a valid GBNF grammar:  {error}", param=param) from None
