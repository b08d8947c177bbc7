"""Compiles the library into the wheel. The wheel is for one platform and any Python."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import compile_library as native

_NAMES = {"win32": "genai_native.dll", "darwin": "libgenai_native.dylib"}


class NativeBuildHook(BuildHookInterface[Any]):
    """Asks for zig's compiler, in the build's own environment, where the machine has none."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling."""
        return [] if native.find_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless this copy of the sources has been compiled before."""
        name = _NAMES.get(sys.platform, "libgenai_native.so")
        library = Path(self.root) / "build" / native.digest() / name
        if not library.exists():
            native.compile_library(library)
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{tag}"
        build_data["pure_python"] = False
        build_data["force_include"][str(library)] = f"genai_server_native/{name}"
