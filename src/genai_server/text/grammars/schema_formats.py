"""Patterns of formats that llguidance implements differently from their standards. What matches has the format.

Days are those of their month and year, no minute has 61 seconds (few of them had), and no name begins a label in a way
that is reserved ("xn--", which more would have to be true of). Addresses and names are no longer than they may be; some
long ones of many labels are left out.
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


def _label(most: int) -> str:
    """A label of at most `most` characters whose third and fourth characters are not both hyphens."""
    return f"{_A}(?:{_A}?|{_X}{_A}(?:{_X}{{0,{most - 4}}}{_A})?|{_X}-{_A}(?:{_X}{{0,{most - 5}}}{_A})?)"


def _name(*kinds: tuple[int, int]) -> str:
    """A name of one of these kinds, each a maximum number of labels and their maximum length.

    A limit of the total length in addition to that of each label would be too expensive to compile.
    """
    names = [rf"{_label(most)}(?:\.{_label(most)}){{0,{labels - 1}}}" for labels, most in kinds]
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
