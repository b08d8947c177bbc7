"""Compiles the library: `python compile_library.py OUT [--target TRIPLE]`.

A compiler of the machine comes first: the one that CXX names, or g++ or clang++ if they are new enough. Where there is
none, or for another TARGET than this machine, it is zig's (`pip install ziglang`). The sources use no C++ standard
library, so that zig need not compile one. Objects are compiled at the same time.
"""

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
# What zig's compiler is to compile for, for the tag of a wheel.
PLATFORMS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64.manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "win_amd64": "x86_64-windows-gnu",
    "macosx_13_0_arm64": "aarch64-macos.13.0",
    "macosx_13_0_x86_64": "x86_64-macos.13.0",
}
_COMMON = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-unknown-warning-option",
]
# Sources with operators, which are compiled once.
_OPERATORS = ("operators", "products", "states", "low_rank")
_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
_AVX512 = [*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")), "-mprefer-vector-width=512"]
# The compiler's options for each instruction set of a kind of processor.
_SETS = {
    "x86_64": {
        "base": [],
        "avx2": [*_AVX2, "-mtune=haswell"],
        "avx512vnni": _AVX512,
        "avx512bf16": [*_AVX512, "-mavx512bf16"],
    },
    "aarch64": {"base": []},
}
_AMX = [*_AVX512, "-mamx-tile", "-mamx-int8"]
_ARMV8 = "-march=armv8.2-a+dotprod+fp16"
# What older compilers do not know, such as g++ 11.
_PROBE = """
typedef _Float16 H __attribute__((vector_size(8)));
typedef float F __attribute__((vector_size(16)));
F widened(H halves) { return __builtin_convertvector(halves, F); }
"""
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def machine() -> str:
    """This machine's kind of processor, as compilers name it."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def library_name(target: str = "") -> str:
    """The name of the library's file."""
    system = target or sys.platform
    if "windows" in system or system == "win32":
        return "genai_native.dll"
    return "libgenai_native.dylib" if "macos" in system or system == "darwin" else "libgenai_native.so"


def find_compiler() -> list[str]:
    """The command of a C++ compiler on this machine; empty without one that can compile the sources."""
    if wanted := os.environ.get("CXX"):
        return shlex.split(wanted)
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name) and _suits(name)), None)
    return [found] if found else []


def _suits(compiler: str) -> bool:
    options = [*_AMX, "-mavx512bf16"] if machine() == "x86_64" else [_ARMV8]
    command = [compiler, "-std=c++17", *options, "-fsyntax-only", "-x", "c++", "-"]
    return not subprocess.run(command, input=_PROBE, text=True, capture_output=True, check=False).returncode


def digest() -> str:
    """Identifies the sources and the options of the compilation."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(SOURCE.iterdir()):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def compile_library(out: Path, target: str = "", extra: Sequence[str] = ()) -> None:
    """Compile the library for `target`, a triple such as aarch64-linux-gnu.2.17; by default for this machine.

    `extra` options go to the compiler and the linker. Raises subprocess.CalledProcessError if the compiler fails, and
    OSError if there is none.
    """
    compiler = [] if target else find_compiler()
    if not compiler:
        compiler = [sys.executable, "-m", "ziglang", "c++", *(["-target", target] if target else [])]
    processor = target.partition("-")[0] or machine()
    is_windows = library_name(target).endswith(".dll")
    is_zig = "zig" in " ".join(compiler)
    common = [option for option in _COMMON if not (is_windows and option == "-fPIC")] + list(extra)
    if is_zig:
        common.append("-mcpu=baseline")  # otherwise it is the processor of this machine
    sets = dict(_SETS[processor])
    if processor == "aarch64":
        sets["base"] = ["-mcpu=generic+dotprod+fullfp16"] if is_zig else [_ARMV8]
    with tempfile.TemporaryDirectory() as folder:
        units = [(f"{name}.cpp", name, list[str]()) for name in _OPERATORS]
        units += [("kernels.cpp", name, [*options, f"-DISA={name}"]) for name, options in sets.items()]
        if processor == "x86_64":
            units.append(("amx.cpp", "amx", _AMX))
        objects = [f"{folder}/{name}.o" for _, name, _ in units]
        commands = [
            [*compiler, *common, *options, "-c", str(SOURCE / source), "-o", made]
            for (source, _, options), made in zip(units, objects, strict=True)
        ]
        _run_all(commands)
        out.parent.mkdir(parents=True, exist_ok=True)
        libraries = [] if is_windows else ["-lm"]
        nothing = ["-nostdlib++"] if is_zig or "clang" in compiler[0] else []
        made = out.with_name(f".{out.name}.{os.getpid()}")
        linked = ["-shared", "-s", *nothing, *extra, "-o", str(made), *objects, *libraries]
        subprocess.run([*compiler, *linked], check=True)
        made.replace(out)  # at once, so that no process maps half of a library


def _run_all(commands: Sequence[list[str]]) -> None:
    running = [subprocess.Popen(command) for command in commands]
    statuses = [process.wait() for process in running]
    for command, status in zip(commands, statuses, strict=True):
        if status:
            raise subprocess.CalledProcessError(status, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="", metavar="TRIPLE")
    arguments = parser.parse_args()
    compile_library(arguments.out, arguments.target)


if __name__ == "__main__":
    main()
