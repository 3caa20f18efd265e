"""Install Triton's Python where Triton is not published, such as on macOS: `python -m mrv2lab.triton_python`.

Triton's wheels are for Linux, 190 MB with 1 MB of Python in them. One is fetched from where pip is set up to
look, and what is Python in it installed with pip; `libtriton` stands in for the native library.
"""

import importlib.util
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from packaging.requirements import Requirement

LINUX = ["--no-deps", "--only-binary=:all:", "--platform=manylinux_2_27_x86_64"]  # its Python is all the same


def pinned() -> str:
    """The Triton that the CPU stack has on Linux, such as `triton==3.7.1`."""
    for found in map(Requirement, requires("mrv2lab") or []):
        on_linux = {"extra": "cpu", "sys_platform": "linux"}
        if found.name == "triton" and found.marker and found.marker.evaluate(on_linux):
            return f"triton{found.specifier}"
    raise RuntimeError("mrv2lab[cpu] asks for no triton")


def python_only(wheel: ZipFile, path: Path) -> None:
    """Write what is Python in a wheel as a wheel for any machine."""
    with ZipFile(path, "w", ZIP_DEFLATED) as pure:
        for name in wheel.namelist():
            # Compilers are found by entry points, and none of them works without the native library.
            if name.endswith(".py") or (".dist-info/" in name and not name.endswith("/entry_points.txt")):
                text = wheel.read(name)
                if name.endswith(".dist-info/RECORD"):
                    kept = (line for line in text.splitlines() if line.split(b",")[0].endswith(b".py"))
                    text = b"\n".join(kept)
                pure.writestr(name, text)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-P", "-m", "pip", "--quiet", *arguments], check=True)


def main() -> None:
    """Install it, unless a Triton is there."""
    if importlib.util.find_spec("triton"):
        return
    requirement = pinned()
    with tempfile.TemporaryDirectory() as folder:
        pure = Path(folder, f"{requirement.replace('==', '-')}-py3-none-any.whl")
        _pip("download", f"--dest={folder}", *LINUX, requirement)
        with ZipFile(next(Path(folder).glob("triton-*.whl"))) as wheel:
            python_only(wheel, pure)
        _pip("install", "--no-deps", str(pure))


if __name__ == "__main__":
    main()
