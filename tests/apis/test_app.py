"""What stands before every route."""

import json
from pathlib import Path

import pytest
from psutil import Process

from tests.running_server import ROOT, command_line, wait_until
from tests.server_here import run_here


@pytest.mark.usefixtures("unforked")
def test_a_vision_model_has_an_image_reader_before_images_come(tmp_path: Path) -> None:
    model = ROOT / "tests" / "built_models" / "qwen-3-vl-images"

    def image_readers() -> dict[int, str]:
        """The directories of their models, by their process ids."""
        found = [one for one in Process().children() if "genai_server.media.images.process" in command_line(one)]
        return {one.pid: json.loads(command_line(one)[-1])["model_dir"] for one in found}

    before = image_readers()  # of servers that are ending
    with run_here(tmp_path, "--device", "cpu", settings={"GENAI_MODEL_DIR": str(model)}):
        wait_until(lambda: [of for pid, of in image_readers().items() if pid not in before] == [str(model)])
