"""Releases of vLLM, as Python source to import: fetched once by pip, kept outside the repository.

vLLM's Python half imports without a GPU. Of a wheel of 250 to 430 MB only the Python files and the
metadata are kept, 24 to 57 MB. A folder for each version, `<cache>/0.23.0`, goes on sys.path.

pip checks the wheel against the hash pinned here. What is kept is checked against the wheel's RECORD, the
sha256 of every file, whose own is pinned here too, when it is unpacked and whenever it is used: an entry is
whole or it is not there. Bytecode, which nothing could be checked against, is none of it. One process fills
the cache at a time, in a folder beside the entries, and renames the finished one into place.
"""

import base64
import bisect
import csv
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from packaging.version import Version

from mrv2lab import forks, prose
from mrv2lab.errors import BadInput
from mrv2lab.locks import held

# The sha256 are those of the x86_64 wheels. 0.21.0 and 0.23.0 were built more than once: these are the last
# builds, which pip installs. Given a hash, pip passes over the builds that have another one.
_WORDS = prose.beside(__file__)
_SAYS: dict[str, str] = _WORDS["says"]
_KNOWN = json.loads(Path(__file__).with_suffix(".json").read_text())
RELEASES: tuple[str, ...] = tuple(_KNOWN["releases"])
SHA256: dict[str, list[str]] = _KNOWN["sha256"]
RECORD: dict[str, str] = _KNOWN["record"]  # of the RECORD in these wheels
TARGET = "0.23.0"

# The form that wheels have in their names: of one version there is one spelling, so one entry.
VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(\.[1-9]\d*)?(rc[1-9]\d*|\.post[1-9]\d*)?", re.ASCII)
KEPT = re.compile(r"vllm/.+\.py|vllm-[^/]+\.dist-info/(METADATA|RECORD|WHEEL)")

# Named outright, so that any machine fetches the same wheel: no compiled file of it is ever loaded.
PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in range(17, 40)))
UNREACHED = re.compile("Retrying|ConnectionPool|HTTP error|Read timed out|IncompleteRead|incomplete-download")
LIMIT_S = 3600.0  # for others to fetch theirs
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ReleaseUnavailable(BadInput):
    """A release that cannot be had: no such version, no way to fetch it, or it came damaged."""


@dataclass(frozen=True)
class Release:
    """A release in the cache. `path` is the folder to put on sys.path; it holds `vllm/`."""

    version: str
    path: Path


def cache_dir() -> Path:
    """Where releases are kept: `$MRV2LAB_CACHE/vllm`, by default `~/.cache/mrv2lab/vllm` (XDG).
    ReleaseUnavailable: neither variable is set and this user has no home folder.
    """
    try:
        own = os.environ.get("MRV2LAB_CACHE")
        base = Path(own or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    except RuntimeError as error:
        raise ReleaseUnavailable("no home folder to keep vLLM in; set MRV2LAB_CACHE to a folder") from error
    return base / "vllm" if own else base / "mrv2lab" / "vllm"


def cached(version: str) -> Release | None:
    """The release if the cache has it, whole and unaltered: every file is hashed, which takes some 0.1 s."""
    path = _place(version)
    return None if _altered(path, version) else Release(version, path)


def fetch(version: str) -> Release:
    """The release from the cache, else by pip.

    That may take minutes and says nothing meanwhile: where `cached` gives None, tell the user first. The
    wheels of `RELEASES` must have the hash pinned here, others the one that the index states. pip's own
    settings decide where wheels come from. ReleaseUnavailable: no such version, or none to be had; says why,
    and what to do.
    """
    if release := cached(version):
        return release
    try:
        with _workspace() as folder:
            return cached(version) or _fill(version, folder)  # another process may have filled it meanwhile
    except OSError as error:
        unusable = f"{cache_dir()} cannot be filled ({error.strerror})"
        elsewhere = "set MRV2LAB_CACHE to a folder to write in"
        is_full = error.errno in DISK_FULL
        reason = _told(_SAYS["no_room"], version) if is_full else f"{unusable}; {elsewhere}"
    except ReleaseUnavailable as error:
        reason = str(error)
    if (path := _place(version)).exists():
        reason = f"{path} is damaged ({_altered(path, version)}) and cannot be replaced: {reason}"
    raise ReleaseUnavailable(reason)


def sort_key(version: str) -> Version:
    """Sorts versions oldest first. ReleaseUnavailable: `version` is no version."""
    _place(version)
    return Version(version)


# ---- the cache ----


def _place(version: str) -> Path:
    if not VERSION.fullmatch(version):
        raise ReleaseUnavailable(_told(_SAYS["no_version"], repr(version), releases=", ".join(RELEASES)))
    return cache_dir() / version


def _altered(folder: Path, version: str) -> str | None:
    """The first file that is missing, too many, or not as the wheel's RECORD states; None if none is."""
    record = f"vllm-{version}.dist-info/RECORD"
    for bytecode in [*folder.rglob("__pycache__")]:  # of a release that was imported without `environment`
        shutil.rmtree(bytecode, ignore_errors=True)
    try:
        rows = csv.reader((folder / record).read_text("utf-8").splitlines())
        stated = {name: digest for name, digest, _ in rows if KEPT.fullmatch(name)}
        present = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        found = {name: _digest(folder / name) for name in present & stated.keys()}
    except OSError as error:
        return os.path.relpath(error.filename or folder / record, folder)
    except (ValueError, csv.Error):
        return record
    if absent := {record, "vllm/__init__.py"} - stated.keys():  # RECORD names itself too, without a hash
        return min(absent)
    stated[record] = RECORD.get(version, found[record])
    folders = {parent.as_posix() for name in stated for parent in PurePath(name).parents}
    wrong = {name for name, digest in stated.items() if found.get(name) != digest}
    return min(wrong | present - stated.keys() - folders, default=None)


def _digest(file: Path) -> str:
    """sha256 as RECORD writes it."""
    digest = hashlib.sha256(file.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


@contextmanager
def _workspace() -> Iterator[Path]:
    """A new folder in the cache, for one process at a time: the others wait here for their turn.

    The system gives the lock back however a process ends, so whoever has it knows that every older
    workspace is a dead process's leftover.
    """
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with held(cache / ".lock", LIMIT_S):
        for leftover in cache.glob(".unfinished-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        new = tempfile.TemporaryDirectory(prefix=".unfinished-", dir=cache, ignore_cleanup_errors=True)
        with new as folder:
            yield Path(folder)


def _fill(version: str, folder: Path) -> Release:
    wheel = _download(version, folder)
    fresh, place = folder / "fresh", _place(version)
    _unpack(wheel, fresh)
    if wrong := _altered(fresh, version):
        raise ReleaseUnavailable(f"{wheel.name} is damaged: {wrong} is not what its RECORD states; try again")
    if place.exists():
        place.rename(folder / "damaged")  # a folder that holds files cannot be replaced in one step
    fresh.rename(place)
    return Release(version, place)


def _unpack(wheel: Path, folder: Path) -> None:
    """Write what is kept of a wheel. zipfile itself keeps names that point elsewhere inside the folder."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if KEPT.fullmatch(name)])
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
        # An impossible offset in the wheel is EINVAL. Any other error of the system is about the disk.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ReleaseUnavailable(f"{wheel.name} is damaged ({type(error).__name__}); try again") from error


# ---- pip ----


def _download(version: str, folder: Path) -> Path:
    """Have pip put the wheel of one version into a folder."""
    wanted = folder / "requirements.txt"
    hashes = [f"--hash=sha256:{sha}" for sha in SHA256.get(version, ())]
    wanted.write_text(" ".join([f"vllm=={version}", *hashes]))
    # pip keeps what it downloads in TMPDIR first; in the folder it goes away with it, also after a kill.
    words = [*_pip_download(), "--requirement", str(wanted), "--dest", str(folder)]
    status, _ = forks.command(words, folder, {"TMPDIR": str(folder), "PIP_QUIET": "0"})
    said = (folder / "log").read_text(errors="replace")
    if status or "is a yanked version" in said:
        raise ReleaseUnavailable(_reason(version, said))
    return next(folder.glob("*.whl"))


def _pip_download() -> list[str]:
    """The command without the wheel's name. pip refuses releases that are not for the running Python."""
    quietly = "--disable-pip-version-check --no-input --no-cache-dir --progress-bar off"
    which = "--retries 1 --timeout 20 --no-deps --only-binary :all: --implementation cp --abi abi3"
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    return [sys.executable, "-P", "-m", "pip", "download", *quietly.split(), *which.split(), *platforms]


# ---- what went wrong, in one line ----


def _told(text: str, version: str, **more: str) -> str:
    known = {"python": sys.executable, "cache": str(cache_dir()), "target": TARGET}
    return text.format(version=version, **known, **more)


def _reason(version: str, said: str) -> str:
    """What pip's words mean. They themselves name addresses and run over many lines."""
    if any(f"[Errno {code}]" in said for code in DISK_FULL):
        return _told(_SAYS["no_room"], version)
    this = ".".join(map(str, sys.version_info[:3]))
    for known in _WORDS["pip"]:
        if found := re.search(known["says"].replace("VERSION", re.escape(version)), said):
            parts = {name: re.sub(r"\w+://\S+", "...", it.strip()) for name, it in found.groupdict().items()}
            return _told(known["means"], version, this=this, **parts)
    offered = re.search(r"from versions: (.*)\)", said)
    # With part of the network away, what is on offer may be a local folder of wheels: no list to choose from.
    if offered and offered[1] != "none" and not UNREACHED.search(said):
        return _not_offered(version, offered[1].split(", "))
    return _told(_SAYS["unreached" if offered or UNREACHED.search(said) else "unknown"], version)


def _not_offered(version: str, offered: list[str]) -> str:
    if version in offered:  # and yet pip would not have it
        return _told(_SAYS["damaged"], version, how="it states another version inside")
    ordered = sorted(offered, key=Version)
    at = bisect.bisect(ordered, Version(version), key=Version)
    # Up to two on either side; beyond the newest, the newest three.
    near = ordered[max(0, at - 2 - (at == len(ordered))) : at + 2]
    return _told(_SAYS["not_offered"], version, near=", ".join(near))
