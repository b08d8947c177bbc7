"""Translates the patterns of JSON schemas to the regular expressions that llguidance, the library that enforces
grammars, reads.

Patterns of JSON schemas are regular expressions of ECMA-262 (JavaScript) with the flag u. llguidance reads the syntax
of Rust's `regex` crate. `translated` is the function to call.
"""

import re

from genai_server.errors import InvalidField, quoted

_DIGITS, _WORD = "0-9", "0-9A-Za-z_"
_SPACE = r"\t\n\x0b\x0c\r \x{a0}\x{feff}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_ANY = r"^\n\r\x{2028}\x{2029}"
# No text has these (json_schema.py), and of a class with all that JSON escapes the compiler would also allow \\ and \".
_NEVER = r"\x00-\x07\x0b\x0e-\x1f\x7f"
# Properties of unassigned characters differ between versions of Unicode.
_UNASSIGNED = r"\p{Cn}"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\x0b", "f": "\x0c", "0": "\0"}
_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")
_REPEAT = re.compile(r"\{\d*(,\d*)?\}")
_GROUP = re.compile(r"\?(P?<(?![=!])[^>]*>|[ims]*(-[ims]+)?[:)])")
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|c([A-Za-z])")
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP]\{[^}]*\}")


def translated(pattern: str) -> str:
    """Return a pattern of a JSON schema in the syntax of Rust's `regex` crate.

    Raises InvalidField, to which the caller adds the field's name, for syntax that has no equivalent. Errors that
    llguidance's compiler reports itself are left to it.
    """
    return _Pattern(pattern).translated()


def has_property(pattern: str) -> bool:
    r"""Whether a pattern uses a Unicode property (\p or \P). Its translation matches no unassigned characters."""
    return "\\p" in pattern.lower()


class _Pattern:
    """Parser that translates one pattern of a JSON schema to Rust's syntax, from its beginning to its end.

    `translated` raises InvalidField, to which the caller adds the field's name, for what cannot be translated.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def translated(self) -> str:
        parts = []
        while self._position < len(self._text):
            parts.append(self._piece())
        return "".join(parts)

    def _piece(self) -> str:
        char = self._next()
        match char:
            case ".":
                return _class(_ANY)
            case "[":
                return self._set()
            case "\\":
                kind, text = self._escape(within=False)
                return _alone(text) if kind == "char" else text if kind == "as it is" else _class(text)
            case "(":
                return "(" + self._group()
            case "{":
                repeat = _REPEAT.match(self._text, self._position - 1)
                if repeat is None:
                    return r"\{"
                self._position = repeat.end()
                return repeat[0]
            case "^" | "$" | "*" | "+" | "?" | "|" | ")":
                return char
            case _:
                return _alone(char)

    def _next(self) -> str:
        if self._position >= len(self._text):
            raise self._refused("ends too early")
        self._position += 1
        return self._text[self._position - 1]

    def _group(self) -> str:
        """Read the characters after an opening parenthesis that say what kind of group it opens, such as `?:`.

        Returns them in Rust's syntax; "" for a plain group. Named groups become unnamed groups, because llguidance
        gives some names a meaning. Raises InvalidField for a lookaround assertion or an unsupported kind of group.
        """
        if not self._text.startswith("?", self._position):
            return ""
        match = _GROUP.match(self._text, self._position)
        if match is None:
            raise self._refused("has a lookaround assertion or an unsupported kind of group")
        self._position = match.end()
        return "?:" if "<" in match[0] else match[0]

    def _set(self) -> str:
        """Translate a character class such as [a-z] after its opening bracket, and return it.

        In ECMA-262, unlike in Rust, "[", "&&", "--" and "~~" in a class are characters.
        """
        is_negated = self._text.startswith("^", self._position)
        self._position += is_negated
        parts: list[str] = []
        while not self._text.startswith("]", self._position):
            parts.append(self._member())
        self._position += 1
        if not parts:
            raise self._refused("has a class without characters")
        return _class("^" * is_negated + "".join(parts))

    def _member(self) -> str:
        r"""Translate one member of a bracketed class, which is a character, a range, or a class such as \d, and return
        it.
        """
        kind, first = self._atom()
        if kind != "char":
            return f"[{first}]" if kind in ("class", "property") else first
        ends = self._text[self._position : self._position + 2]
        if not ends.startswith("-") or ends in ("-", "-]"):
            return _literal(first)
        before, self._position = self._position, self._position + 1
        kind, last = self._atom()
        if kind != "char":  # then the hyphen is itself
            self._position = before
            return _literal(first)
        return f"{_literal(first)}-{_literal(last)}"

    def _atom(self) -> tuple[str, str]:
        char = self._next()
        return self._escape(within=True) if char == "\\" else ("char", char)

    def _escape(self, *, within: bool) -> tuple[str, str]:
        r"""Read an escape such as \d, after its backslash. Returns the kind of the escape and its text.

        The kinds are "char" (the text is one character), "class" (the text has the members of a class such as all
        digits), "property" (a Unicode property) and "as it is" (an escape that is not translated). `within` says that
        the escape stands within brackets.
        """
        if code := _CODE.match(self._text, self._position):
            self._position = code.end()
            return "char", self._character(code)
        if named := _PROPERTY.match(self._text, self._position):
            self._position = named.end()
            return "property", f"\\{named[0]}"
        char = self._next()
        if char.lower() in _CLASSES:
            return "class", ("^" if char.isupper() else "") + _CLASSES[char.lower()]
        if char in _CONTROLS and not (char == "0" and self._text[self._position : self._position + 1].isdigit()):
            return "char", _CONTROLS[char]
        if within and char == "b":
            return "char", "\b"
        if char.isascii() and char.isalnum():
            return "as it is", f"\\{char}"
        return "char", char

    def _character(self, code: re.Match[str]) -> str:
        if code[4]:
            return chr(ord(code[4]) % 32)
        number = int(code[1] or code[2] or code[3], 16)
        if 0xD800 <= number < 0xDC00 and (low := _LOW_SURROGATE.match(self._text, self._position)):
            self._position = low.end()
            number = 0x10000 + ((number - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if 0xD800 <= number < 0xE000 or number > 0x10FFFF:
            raise self._refused(f"has {code[0]}, which is no character")
        return chr(number)

    def _refused(self, reason: str) -> InvalidField:
        return InvalidField(None, f"the pattern {quoted(self._text)} {reason}")


def _class(inner: str) -> str:
    """Return the expression for a character class, of which `inner` is the text between the brackets.

    Characters that no string can contain are excluded.
    """
    return f"[[{inner}]&&[^{_NEVER}{_UNASSIGNED if _PROPERTY.search(inner) else ''}]]"


def _alone(char: str) -> str:
    """Return the expression for one character that does not stand in brackets."""
    return _class(_literal(char)) if char < " " or char == "\x7f" else _literal(char)


def _literal(char: str) -> str:
    """Return the expression that matches exactly this character, inside and outside of brackets; it is escaped if
    necessary.
    """
    if char in _SPECIAL:
        return f"\\{char}"
    return char if char.isprintable() else f"\\x{{{ord(char):x}}}"
