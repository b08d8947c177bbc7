from pathlib import Path

from genai_server.cli.serve.loaders import text_loader
from tests.given_settings import given

DEMO = Path(__file__).parents[3] / "models" / "demo"


def test_devices_of_one_kind_share_a_codec() -> None:
    codecs = text_loader(given())(str(DEMO), ["cpu:0", "scripted", "cpu:1"], "")
    assert list(codecs) == ["cpu:0", "scripted", "cpu:1"]
    assert codecs["cpu:0"] is codecs["cpu:1"]
    assert codecs["scripted"] is not codecs["cpu:0"]
