"""The settings as options of a command."""

import argparse

import pytest

from genai_server.config.setting_form import option
from genai_server.config.settings import Settings
from genai_server.config.sources import add_options
from tests.given_settings import given


def _parse(*arguments: str) -> dict[str, str | None]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return vars(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "reload"),
    [(["--reload"], True), (["--reload", "true"], True), (["--reload", "false"], False), ([], False)],
)
def test_a_switch_may_stand_alone_or_with_a_value(arguments: list[str], reload: bool) -> None:
    assert given(**_parse(*arguments)).reload is reload


def test_the_help_names_variable_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "(GENAI_MAX_BATCH_SIZE, default: 16)" in shown
    for name in Settings.model_fields:
        assert option(name) in shown
