"""Builds the wheels of genai-server-native for all platforms on any of them: `python build_wheels.py FOLDER`.

pip makes an environment with zig's compiler for each.
"""

import os
import subprocess
import sys
from pathlib import Path

from compile_library import PLATFORMS

HERE = Path(__file__).parent


def main() -> None:
    folder = sys.argv[1]
    for platform in PLATFORMS:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(HERE)]
        subprocess.run(command, env=os.environ | {"GENAI_NATIVE_PLATFORM": platform}, check=True)


if __name__ == "__main__":
    main()
