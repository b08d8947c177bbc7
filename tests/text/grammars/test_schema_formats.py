"""Formats of schemas, where the library alone would allow invalid values."""

import json

import pytest

from tests.text.guided import assert_answers, followed

LONG = "a" * 64


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "2023-02-28", "0001-01-01", "1990-12-31"],
            ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-13-01"],
        ),
        ("time", ["23:59:59Z", "00:00:00.123+02:00", "01:02:03z"], ["23:59:60Z", "24:00:00Z", "12:00:00"]),
        ("date-time", ["2024-02-29T23:59:59.5-08:00"], ["2023-02-29T00:00:00Z", "2024-02-29T00:00:60Z"]),
        (
            "hostname",
            ["example.com", "a", "a-b.c", "a--b.c", "ab-c", LONG[1:]],
            ["ab--c", "xn--x", f"{LONG}.com", "-a", "a-", ".".join([LONG[1:]] * 4)],
        ),
        (
            "email",
            ["first.last+x@example.com", f"{LONG[1:]}@example.com", "a@b", "ab.c@mail.eu.example.co.uk"],
            [f"{LONG}a@example.com", f"a@{'.'.join([LONG[1:]] * 4)}", f"a@{LONG}.com", "a@b@c", ".a@b.c", "a"],
        ),
    ],
)
@pytest.mark.parametrize("more", [{}, {"pattern": "[A-Za-z0-9]$"}, {"allOf": [{"minLength": 1}]}, {"maxLength": 200}])
def test_a_format_is_what_its_standard_says(
    format: str, good: list[str], bad: list[str], more: dict[str, object]
) -> None:
    built = followed({"type": ["string", "null"], "format": format, **more})
    assert_answers(built, ["null", *map(json.dumps, good)], map(json.dumps, bad))


@pytest.mark.parametrize("format", ["email", "hostname"])
def test_format_is_followed_together_with_a_pattern(format: str) -> None:
    built = followed({"type": "string", "format": format, "pattern": "example\\.com$"})
    name = "a@example.com" if format == "email" else "example.com"
    assert_answers(built, [f'"{name}"'], [f'"{name}.org"'])
