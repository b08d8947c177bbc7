"""Errors of the command line."""

import argparse
import re
from collections.abc import Callable

import pytest

from genai_server.cli import main
from genai_server.cli.parser import SuggestingParser, number_from, positive
from genai_server.cli.serve.serve_command import add_arguments
from genai_server.tools.terminal_chat.chat_command import add_arguments as add_dialogue_arguments


@pytest.mark.parametrize(
    ("arguments", "usage", "meant"),
    [
        ("serve --prot 9000", "genai-server serve ", "unrecognized arguments: --prot; did you mean --port?"),
        ("serve --prot=9000", "genai-server serve ", "unrecognized arguments: --prot=9000; did you mean --port?"),
        ("chat --modell x", "genai-server chat ", "unrecognized arguments: --modell; did you mean --model?"),
        ("profile report x --sloww 2", "genai-server profile report ", "did you mean --slow?"),
        ("profile reprot x", "genai-server profile ", "did you mean report?"),
        ("bench --scenario swep", "genai-server bench ", "did you mean sweep?"),
        ("serv", "genai-server ", "did you mean serve?"),
        ("serve --disable-auto-complete-config", "genai-server serve ", "translates a config.pbtxt of Triton"),
        ("--verion", "genai-server ", "unrecognized arguments: --verion; did you mean --version?"),
        ("ls", "genai-server ", "did you mean models?"),
        ("rm demo", "genai-server ", "did you mean models remove?"),
    ],
)
def test_typo_shows_the_commands_usage_and_a_suggestion(
    arguments: str, usage: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"usage: {usage}")
    assert printed.err.rstrip().endswith(meant)


@pytest.mark.parametrize(
    ("arguments", "model", "insecure"),
    [
        (["--insecure", "./model"], "./model", "true"),
        (["./model", "--insecure"], "./model", "true"),
        (["--insecure", "False", "./model"], "./model", "False"),
        (["--insecure", "", "./model"], "./model", ""),
        (["--insecure", "--ui", "false"], None, "true"),
        ([], None, None),
    ],
)
def test_a_switch_takes_a_truth_value_only(arguments: list[str], model: str | None, insecure: str | None) -> None:
    parser = SuggestingParser()
    add_arguments(parser)
    found = parser.parse_args(arguments)
    assert (found.model, found.insecure) == (model, insecure)


def test_an_argument_that_may_be_left_out_may_follow_an_option() -> None:
    parser = SuggestingParser()
    add_dialogue_arguments(parser)
    found = parser.parse_args(["URL", "--system", "short", "question"])
    assert (found.target, found.system, found.question) == ("URL", "short", "question")
    with pytest.raises(SystemExit):
        parser.parse_args(["URL", "--system", "short", "question", "another"])


def test_a_word_that_is_like_nothing_gets_no_advice_and_the_usage_of_many_options_is_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--zzz", "9000"])
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), "did you mean" in lines[2]) == (3, False)
    assert "genai-server serve --help lists the options" in lines[1]


@pytest.mark.parametrize(
    ("parse", "text", "found"),
    [
        (positive, "1", 1),
        (positive, "0", "0 is not a whole number of at least 1"),
        (positive, "1.5", "1.5 is not a whole number of at least 1"),
        (number_from(0), "0", 0.0),
        (number_from(0), "1e3", 1000.0),
        (number_from(0), "-1", "-1 is not 0 or more"),
        (number_from(0), "inf", "inf is not 0 or more"),
        (number_from(0), "nan", "nan is not 0 or more"),
        (number_from(0.5, 2), "2", 2.0),
        (number_from(0.5, 2), "2.1", "2.1 is not between 0.5 and 2"),
        (number_from(0.5, 2), "x", "x is not between 0.5 and 2"),
    ],
)
def test_a_number_is_taken_within_its_limits(parse: Callable[[str], float], text: str, found: float | str) -> None:
    if isinstance(found, str):
        with pytest.raises(argparse.ArgumentTypeError, match=f"^{re.escape(found)}$"):
            parse(text)
    else:
        assert parse(text) == found
