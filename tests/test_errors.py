"""The tree of errors: its picture in the module's docstring, its codes, and errors rebuilt from codes."""

import re

from genai_server import errors
from genai_server.errors import ALL_ERRORS, GenaiServerError

_BRANCH = re.compile(r"^(?P<branch>[│├└─ ]{4,})(?P<name>[A-Z]\w+)  ", re.MULTILINE)


def _drawn_tree() -> dict[str, str]:
    """Class and parent of each line of the picture in the docstring, whose levels are four columns apart."""
    path = ["GenaiServerError"]
    tree = {}
    for line in _BRANCH.finditer(errors.__doc__ or ""):
        depth = len(line["branch"]) // 4
        path[depth:] = [line["name"]]
        tree[line["name"]] = path[depth - 1]
    return tree


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    assert _drawn_tree() == {error.__name__: error.__bases__[0].__name__ for error in ALL_ERRORS[1:]}


def test_all_errors_holds_each_error_of_the_module_once() -> None:
    defined = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GenaiServerError)
    ]
    assert sorted(ALL_ERRORS, key=str) == sorted(defined, key=str)


def test_each_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in ALL_ERRORS]
    assert len(set(codes)) == len(codes)


def test_quoted_client_text_can_be_encoded() -> None:
    error = errors.UnknownField("a\ud800 is no field, ü is", param="a\ud800")
    assert (error.message, error.param) == (r"a\ud800 is no field, ü is", r"a\ud800")
    assert str(error) == error.message
