"""Compare the short names of models with the hub: each must have a variant for CPUs, whose size is shown.

HF_ENDPOINT names another hub. Nothing is fetched but the lists of files.
"""

from __future__ import annotations

import argparse
import sys

from _models.table import table

from genai_server.cli.pull_command import in_folder
from genai_server.errors import PullFailed
from genai_server.hub.client import Hub
from genai_server.hub.repository import select_model
from genai_server.hub.short_names import SHORT_NAMES

DEVICES = ("cpu", "cuda", "directml")
GIB = 1024**3


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    hub = Hub()
    rows, faults = [["name", "repository", "device", "folder", "GiB"]], 0
    for name, place in SHORT_NAMES.items():
        repository_name, _, folder = place.partition(":")
        for device in DEVICES:
            row = [name, place, device]
            try:
                found = select_model(hub.repository(repository_name, None), in_folder(folder), device)
                row += [found.folder, f"{found.size / GIB:.2f}"]
            except PullFailed as error:
                row += [error.message.splitlines()[0], ""]
                faults += device == "cpu"
            rows.append(row)
    print(table(rows, markdown=False))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
