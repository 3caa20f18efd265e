"""Install Triton's Python where Triton is not published, such as on macOS: `python -m mrv2lab.triton_python`.

Triton's wheels are for Linux, 190 MB with 1 MB of Python in them. Only the Python is fetched, from where pip
is set up to look, and installed with pip; `libtriton` stands in for the native library.
"""

import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import requires
from pathlib import Path
from urllib.response import addinfourl
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


class _Remote(io.RawIOBase):
    """A file at an address; only what is read is fetched. OSError: no such server, or it knows no ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        with self._range(0, 1) as reply:
            self.size = int(reply.headers["Content-Range"].split("/")[1])

    def _range(self, first: int, end: int) -> addinfourl:
        asked = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{end - 1}"})
        reply: addinfourl = urllib.request.urlopen(asked, timeout=60)
        if getattr(reply, "status", None) != 206:
            reply.close()
            raise OSError("no ranges")
        return reply

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self.at + len(buffer), self.size)
        if end <= self.at:
            return 0
        with self._range(self.at, end) as reply:
            data = reply.read()
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _open(requirement: str, folder: Path) -> ZipFile:
    """The Linux wheel: in parts where the server allows it, else whole, below `folder`."""
    told = _pip("install", "--dry-run", "--report=-", f"--target={folder}", *LINUX, requirement)
    (found,) = json.loads(told)["install"]
    try:
        # Files lie close together, so that a quarter of a megabyte often holds the next ones too.
        return ZipFile(io.BufferedReader(_Remote(found["download_info"]["url"]), 1 << 18))
    except OSError:
        print(f"{requirement}: a file comes only whole here, so all 190 MB are downloaded", flush=True)
        _pip("download", f"--dest={folder}", *LINUX, requirement)
        return ZipFile(next(folder.glob("triton-*.whl")))


def main() -> None:
    """Install it, unless a Triton is there."""
    if importlib.util.find_spec("triton"):
        return
    requirement = pinned()
    with tempfile.TemporaryDirectory() as folder:
        pure = Path(folder, f"{requirement.replace('==', '-')}-py3-none-any.whl")
        with _open(requirement, Path(folder)) as wheel:
            python_only(wheel, pure)
        _pip("install", "--no-deps", str(pure))


if __name__ == "__main__":
    main()
