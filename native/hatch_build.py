"""Compiles the library into the wheel. The wheel is for one platform and any Python.

GENAI_NATIVE_PLATFORM names another platform than this machine's: one of compile_library.PLATFORMS.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import compile_library as native


class NativeBuildHook(BuildHookInterface[Any]):
    """Asks for zig's compiler, in the build's own environment, where the machine has none."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling."""
        is_for_this_machine = not os.environ.get("GENAI_NATIVE_PLATFORM")
        return [] if is_for_this_machine and native.find_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless this copy of the sources has been compiled before."""
        platform = os.environ.get("GENAI_NATIVE_PLATFORM", "")
        target = native.PLATFORMS[platform] if platform else ""
        name = native.library_name(target)
        library = Path(self.root) / "build" / native.digest() / target / name
        if not library.exists():
            native.compile_library(library, target)
        tag = platform or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{tag}"
        build_data["pure_python"] = False
        build_data["force_include"][str(library)] = f"genai_server_native/{name}"
