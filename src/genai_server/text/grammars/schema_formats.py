"""Regular expressions for the `format` values of JSON schema that llguidance implements differently from the standard.

Whatever matches an expression has the format; some unusual values of the format do not match. Dates only have days that
exist in their month and year. No time has second 60 (leap seconds are rare). No label of a host name has hyphens as
third and fourth character (reserved for "xn--", which has further rules). Addresses and names are no longer than the
standard allows; some long names with many labels do not match.
"""

_MONTH_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_FOURS = "(?:0[48]|[2468][048]|[13579][26])"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|(?:[0-9]{{2}}{_FOURS}|{_FOURS}00)-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_ATEXT = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]"
_A, _X, _HEX = "[a-zA-Z0-9]", "[a-zA-Z0-9-]", "[0-9a-f]"


def _label(max_length: int) -> str:
    """Return an expression for a label of a host name, whose third and fourth characters are not both hyphens.

    `max_length` is the maximum number of characters.
    """
    return f"{_A}(?:{_A}?|{_X}{_A}(?:{_X}{{0,{max_length - 4}}}{_A})?|{_X}-{_A}(?:{_X}{{0,{max_length - 5}}}{_A})?)"


def _name(*kinds: tuple[int, int]) -> str:
    """Return an expression for a host name of one of several kinds: (maximum number of labels, maximum label length).

    A limit of the name's total length besides that of each label would be too expensive to compile.
    """
    names = [rf"{_label(max_length)}(?:\.{_label(max_length)}){{0,{labels - 1}}}" for labels, max_length in kinds]
    return f"(?:{'|'.join(names)})"


# At most 64 characters; those longer than 32 have at most three dots.
_LOCALS = [
    rf"{_ATEXT}(?:\.?{_ATEXT}){{0,31}}",
    rf"{_ATEXT}{{1,32}}\.?{_ATEXT}{{1,31}}",
    rf"{_ATEXT}{{1,15}}(?:\.{_ATEXT}{{1,15}}){{2,3}}",
]

# Formats that llguidance implements itself.
KNOWN_FORMATS = frozenset({"duration", "ipv4", "ipv6", "uri", "uuid"})
# Maps a format to one that is equal or narrower.
EQUAL_FORMATS = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri",
    "uri-reference": "uri",
    "url": "uri",
}

# Keyed by the format's name.
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "hostname": f"^{_name((3, 63), (8, 30))}$",
    "email": f"^(?:{'|'.join(_LOCALS)})@{_name((3, 62), (8, 22))}$",
    "json-pointer": "^(?:/(?:[^/~]|~[01])*)*$",
    "uuid4": f"^{_HEX}{{8}}-{_HEX}{{4}}-4{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}$",
}
