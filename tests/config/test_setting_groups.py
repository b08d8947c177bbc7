"""Every setting is shown in one group."""

from itertools import chain

from genai_server.config.setting_groups import GROUPS
from genai_server.config.settings import Settings


def test_each_setting_is_in_one_group() -> None:
    """Add a new setting to a group of config/setting_groups.py."""
    assert sorted(chain(*GROUPS.values())) == sorted(Settings.model_fields)
