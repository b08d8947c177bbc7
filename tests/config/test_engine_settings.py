"""What engines receive of the settings."""

from pathlib import Path

from genai_server.config import engine_settings, load_settings


def test_an_engine_gets_each_setting_by_its_name() -> None:
    settings = load_settings({}, environ={"GENAI_MAX_QUEUE": "7", "GENAI_LOG_FORMAT": "json"}, dotenv=None)
    found = engine_settings(settings)
    for name in set(found.__struct_fields__) - {"cache_dir", "profile_dir"}:
        assert getattr(found, name) == getattr(settings, name)
    assert (found.max_queue, found.log_format) == (7, "json")


def test_folder_settings_are_paths_and_none_disables_the_cache() -> None:
    environ = {"GENAI_CACHE_DIR": "none", "GENAI_PROFILE_DIR": "/tmp/profiles"}
    found = engine_settings(load_settings({}, environ=environ, dotenv=None))
    assert (found.cache_dir, found.profile_dir) == ("", str(Path("/tmp/profiles")))
    settings = load_settings({}, environ={}, dotenv=None)
    assert engine_settings(settings).cache_dir == str(settings.cache_path)
