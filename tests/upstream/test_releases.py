"""Releases of vLLM: whole in the cache or not there, and one plain line for whatever prevents it.

No test leaves this machine: tiny wheels are served to pip by an index on loopback.
"""

import base64
import errno
import hashlib
import html
import importlib.util
import os
import py_compile
import signal
import subprocess
import sys
import threading
import time
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mrv2lab import forks
from mrv2lab.upstream import process, releases
from mrv2lab.upstream.releases import RELEASES, SHA256, TARGET, Release, ReleaseUnavailable, cached, fetch

NEW = "9.9.9"  # no pinned hash, so a made-up wheel will do
INFO = f"vllm-{NEW}.dist-info"
SOURCE = "VERSION = 'made up'\n"


# ---- an index of made-up wheels ----


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def write_wheel(path, version=NEW, sources=None, **changed):
    """A wheel with Python files, a library and a RECORD; `changed`: content that RECORD does not know of."""
    info = f"vllm-{version}.dist-info"
    files = {
        f"vllm/{name}": text
        for name, text in (sources or {"__init__.py": SOURCE, "v1/a.py": "A = 1\n"}).items()
    }
    files |= {"vllm/_C.abi3.so": "machine code", f"{info}/entry_points.txt": ""}
    files |= {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"}
    files |= {
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-manylinux_2_28_x86_64\n"
    }
    rows = [f"{name},{digest(text.encode())},{len(text)}" for name, text in files.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, changed.get(name.rpartition("/")[2].partition(".")[0], text))
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,\n"]))


class Index:
    """A package index (PEP 503) on loopback. `requests`: paths asked for; `delay_s`: before each wheel."""

    def __init__(self, folder):
        self.folder, self.requests, self.delay_s = folder / "simple" / "vllm", [], 0.0
        self.folder.mkdir(parents=True)
        index = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args):
                super().__init__(*args, directory=str(folder))

            def do_GET(self):
                index.requests.append(self.path)
                time.sleep(index.delay_s if self.path.endswith(".whl") else 0)
                super().do_GET()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def offer(self, version=NEW, fragment="", platform="manylinux_2_28_x86_64", attributes=None, **wheel):
        """Add a wheel, and its link with attributes such as data-yanked."""
        path = self.folder / f"vllm-{version}-cp38-abi3-{platform}.whl"
        write_wheel(path, version, **wheel)
        listed = " ".join(f'{name}="{html.escape(value)}"' for name, value in (attributes or {}).items())
        with open(self.folder / "index.html", "a") as page:
            page.write(f'<a href="{path.name}{fragment}" {listed}>{path.name}</a>\n')
        return path

    @property
    def downloads(self):
        return [path for path in self.requests if path.endswith(".whl")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and a pip that knows of no source of wheels."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("MRV2LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vllm"


PIP = """
import contextlib, io, os
from pip._internal.cli.main import main
os.environ.clear()
os.environ.update({env!r})
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    status = main({args!r})
tell((status, out.getvalue(), err.getvalue()))
"""


@pytest.fixture(autouse=True)
def forked_pip(monkeypatch, in_fork):
    """To start and to import it takes longer than its work. In `FETCH` it runs as for users."""
    run = forks.command

    def forked(words, folder, env):
        if words[1:4] != ["-P", "-m", "pip"]:
            return run(words, folder, env)
        status, out, err = in_fork(PIP.format(env={**os.environ, **env}, args=words[4:]))
        (folder / "log").write_text(out + err)
        return status, ""

    monkeypatch.setattr(forks, "command", forked)


@pytest.fixture
def index(tmp_path, monkeypatch):
    index = Index(tmp_path / "index")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    yield index
    index.server.shutdown()
    index.server.server_close()


def refusal(version):
    """The one line a user reads."""
    with pytest.raises(ReleaseUnavailable) as caught:
        fetch(version)
    line = str(caught.value)
    assert "\n" not in line and "127.0.0.1" not in line and "://" not in line
    return line


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def kept(release):
    return sorted(p.relative_to(release.path).as_posix() for p in release.path.rglob("*") if p.is_file())


ALL_KEPT = [f"{INFO}/METADATA", f"{INFO}/RECORD", f"{INFO}/WHEEL", "vllm/__init__.py", "vllm/v1/a.py"]


# ---- what is kept, and where ----


def test_a_fetched_release_holds_the_python_files_and_nothing_else(index, cache):
    index.offer()
    release = fetch(NEW)
    assert release == Release(NEW, cache / NEW) == cached(NEW)
    assert kept(release) == ALL_KEPT
    assert entries(cache) == [".lock", NEW]


def test_a_fetched_release_imports(index):
    index.offer()
    code = f"import sys; sys.path.insert(0, {str(fetch(NEW).path)!r}); import vllm; print(vllm.VERSION)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "made up\n"
    assert kept(fetch(NEW)) == ALL_KEPT and len(index.downloads) == 1


def test_a_filled_cache_needs_no_network_and_no_right_to_write(index, cache, monkeypatch):
    index.offer()
    release = fetch(NEW)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(releases, "_workspace", None)
    assert fetch(NEW) == release


def test_releases_stand_side_by_side(index, cache):
    index.offer()
    index.offer("9.9.10")
    assert fetch(NEW).path != fetch("9.9.10").path
    assert cached(NEW) and cached("9.9.10")


@pytest.mark.parametrize(
    "set_to, expected",
    [
        ({"MRV2LAB_CACHE": "/a"}, "/a/vllm"),
        ({"MRV2LAB_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/mrv2lab/vllm"),
        ({"MRV2LAB_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/mrv2lab/vllm"),
    ],
)
def test_the_cache_is_where_the_user_says(set_to, expected, monkeypatch):
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    assert str(releases.cache_dir()) == expected


def test_every_release_of_the_workbook_is_pinned_by_hash():
    assert TARGET in RELEASES and set(RELEASES) <= set(SHA256)
    assert all(len(sha) == 64 and int(sha, 16) for shas in SHA256.values() for sha in shas)
    assert releases.RECORD.keys() == SHA256.keys()


# ---- a damaged cache ----


def cut(path):
    path.write_text(path.read_text()[:5])


def edit(path, old="1", new="2"):
    path.write_text(path.read_text().replace(old, new))


def add(name):
    def damage(path):
        path.parent.mkdir(exist_ok=True)
        (path.parents[1] / name).touch()

    return damage


DAMAGE = {
    "cut": (cut, "vllm/v1/a.py"),
    "edited": (edit, "vllm/v1/a.py"),
    "missing": (lambda path: path.unlink(), "vllm/v1/a.py"),
    "one too many": (add("v1/more.py"), "vllm/v1/a.py"),
    "a library too many": (add("_C.abi3.so"), "vllm/v1/a.py"),
    "a module of another name": (add("sitecustomize.py"), "vllm/__init__.py"),
    "an empty folder": (lambda path: (path.parents[1] / "flashinfer").mkdir(), "vllm/__init__.py"),
    "a link": (lambda path: (path.parent / "link").symlink_to("v1"), "vllm/__init__.py"),
    "RECORD cut": (cut, f"{INFO}/RECORD"),
    "RECORD without its last row": (lambda path: edit(path, f"\n{INFO}/RECORD,,", ""), f"{INFO}/RECORD"),
    "RECORD emptied": (lambda path: path.write_text(""), f"{INFO}/RECORD"),
    "RECORD binary": (lambda path: path.write_bytes(b"\xff\x00"), f"{INFO}/RECORD"),
    "RECORD missing": (lambda path: path.unlink(), f"{INFO}/RECORD"),
}


@pytest.mark.parametrize("damage, name", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_not_used(damage, name, tmp_path, cache):
    write_wheel(tmp_path / "good.whl")
    releases._unpack(tmp_path / "good.whl", cache / NEW)
    assert cached(NEW)
    damage(cache / NEW / name)
    assert cached(NEW) is None


def test_an_entry_that_states_an_altered_file_in_its_record_is_not_used(tmp_path, cache, monkeypatch):
    write_wheel(tmp_path / "good.whl")
    releases._unpack(tmp_path / "good.whl", cache / NEW)
    record = cache / NEW / INFO / "RECORD"
    monkeypatch.setitem(releases.RECORD, NEW, digest(record.read_bytes()))
    assert cached(NEW)
    before = digest((cache / NEW / "vllm/v1/a.py").read_bytes())
    edit(cache / NEW / "vllm/v1/a.py")
    edit(record, before, digest((cache / NEW / "vllm/v1/a.py").read_bytes()))
    assert cached(NEW) is None
    monkeypatch.delitem(releases.RECORD, NEW)  # of a version without a pin the wheel's word is all there is
    assert cached(NEW)


def test_bytecode_in_the_cache_is_never_run(tmp_path, cache):
    """It says which source it was made from, by time and size: a forged one is run in place of that."""
    write_wheel(tmp_path / "good.whl")
    releases._unpack(tmp_path / "good.whl", cache / NEW)
    source, forged = cache / NEW / "vllm" / "__init__.py", tmp_path / "forged.py"
    forged.write_text(source.read_text().replace("made up", "not his"))
    os.utime(forged, (0, 0))
    os.utime(source, (0, 0))
    py_compile.compile(forged, importlib.util.cache_from_source(source))
    assert cached(NEW)
    done = subprocess.run(
        [sys.executable, "-c", "import vllm; print(vllm.VERSION)"],
        env=process.environment(NEW), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "made up\n"
    assert kept(cached(NEW)) == ALL_KEPT  # nor is any left there


def test_a_damaged_entry_is_named_without_network_and_replaced_with_it(index, cache, monkeypatch):
    index.offer()
    cut(fetch(NEW).path / "vllm/v1/a.py")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert refusal(NEW).startswith(f"{cache / NEW} is damaged (vllm/v1/a.py) and cannot be replaced: neither")
    monkeypatch.delenv("PIP_NO_INDEX")
    assert kept(fetch(NEW)) == ALL_KEPT
    assert entries(cache) == [".lock", NEW]


# ---- versions that cannot be had ----


@pytest.mark.parametrize(
    "given", ["latest;rm", "", "0.23", "0.23.0.0", "v0.23.0", "../0.23.0", "0.23.0\n", "\u0660.23.0"]
)
def test_what_is_no_version_never_reaches_pip(given, monkeypatch, cache):
    monkeypatch.setattr(releases, "_download", None)
    assert refusal(given).startswith(f"{given!r} is no version of vLLM; possible: three numbers like 0.23.0")
    assert not cache.exists()


def test_an_unknown_version_names_the_nearest(index):
    for version in ["9.8.0", "9.9.0", "9.10.0", "9.11.0", "9.12.0"]:
        index.offer(version)
    assert "nearest: 9.8.0, 9.9.0, 9.10.0, 9.11.0;" in refusal(NEW)
    assert "nearest: 9.10.0, 9.11.0, 9.12.0;" in refusal("99.0.0")


def test_a_wheel_for_another_machine_is_not_on_offer(index):
    index.offer("9.9.8")
    index.offer(platform="manylinux_2_28_aarch64")
    assert "nearest: 9.9.8;" in refusal(NEW)


@pytest.mark.parametrize(
    "why, told", [("wrong build; see https://somewhere/x", "wrong build; see ..."), ("", "none")]
)
def test_a_yanked_release_is_refused_with_its_reason(why, told, index, cache, monkeypatch):
    monkeypatch.setenv("PIP_QUIET", "2")  # a quiet pip must not hide it
    index.offer(attributes={"data-yanked": why})
    line = refusal(NEW)
    assert f"vllm {NEW} was yanked" in line and told in line
    assert cached(NEW) is None and entries(cache) == [".lock"]


def test_a_release_that_refuses_this_python_says_which_it_needs(index):
    index.offer("9.9.8")
    index.offer(attributes={"data-requires-python": ">=3.99"})
    assert f"vllm {NEW} needs Python >=3.99, and this is {sys.version_info[0]}." in refusal(NEW)


# ---- damaged wheels ----


def test_a_wheel_of_a_pinned_version_must_have_the_pinned_hash(index, cache, monkeypatch):
    path = index.offer(TARGET)
    assert "sha256 is wrong" in refusal(TARGET)
    assert entries(cache) == [".lock"]
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(releases.SHA256, TARGET, ("0" * 64, right))
    monkeypatch.delitem(releases.RECORD, TARGET)
    assert fetch(TARGET).version == TARGET


def test_other_versions_must_have_the_hash_that_the_index_states(index, cache):
    index.offer(fragment=f"#sha256={'0' * 64}")
    assert "sha256 is wrong" in refusal(NEW)
    assert entries(cache) == [".lock"]


def test_a_wheel_whose_file_differs_from_its_record_is_refused(index, cache):
    index.offer(a="A = 2\n")
    assert "is damaged: vllm/v1/a.py is not what its RECORD states" in refusal(NEW)
    assert entries(cache) == [".lock"]


def test_a_wheel_without_a_file_of_its_record_is_refused(index, cache):
    path = index.offer()
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != "vllm/v1/a.py"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert "vllm/v1/a.py is not what its RECORD states" in refusal(NEW)


def test_a_wheel_cut_off_is_refused(index, cache):
    path = index.offer()
    path.write_bytes(path.read_bytes()[:300])
    assert f"the wheel of vllm {NEW} is damaged or another one (it cannot be read)" in refusal(NEW)
    assert entries(cache) == [".lock"]


def test_a_wheel_without_vllm_is_refused(index):
    index.offer(sources={"other.py": SOURCE})
    assert "vllm/__init__.py is not what its RECORD states" in refusal(NEW)


def test_a_wheel_under_the_wrong_name_is_refused(index):
    write_wheel(index.offer(), "9.9.8")
    assert "(it states another version inside)" in refusal(NEW)


def test_a_damaged_byte_never_gets_into_the_cache(tmp_path):
    good = tmp_path / "good.whl"
    write_wheel(good, sources={"__init__.py": SOURCE, "é.py": ""})
    for at in range(good.stat().st_size):
        data = bytearray(good.read_bytes())
        data[at] ^= 0xFF
        bad = tmp_path / f"{at}.whl"
        bad.write_bytes(data)
        try:
            releases._unpack(bad, tmp_path / str(at))
        except ReleaseUnavailable:
            continue
        if releases._altered(tmp_path / str(at), NEW) is None:
            assert (tmp_path / str(at) / "vllm/__init__.py").read_text() == SOURCE


# ---- no network, no room, no pip ----


def test_without_network_and_cache_it_says_so_soon(monkeypatch, cache):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    started = time.monotonic()
    assert refusal(NEW).startswith(f"neither the cache ({cache}) nor the network has vllm {NEW}; connect, or")
    assert time.monotonic() - started < 20


def test_a_wheel_that_the_index_lists_and_does_not_give(index):
    index.offer().unlink()
    assert "nor the network" in refusal(NEW)


def test_a_folder_of_other_wheels_does_not_hide_that_the_network_is_away(index, monkeypatch):
    index.offer("9.9.8")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "nor the network" in refusal(NEW)


def test_a_full_disk_while_pip_downloads(index, cache, monkeypatch):
    """A limit on the size of files stands for the disk: pip meets an error of the system as it writes."""
    path = index.offer(sources={"__init__.py": "#" * 3_000_000})
    run = forks.command

    def limited(words, folder, env):
        assert env["TMPDIR"].startswith(str(cache))  # else it fills another disk
        return run(["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *words], folder, env)

    monkeypatch.setattr(forks, "command", limited)
    assert path.stat().st_size > 2_000_000
    assert f"the disk of {cache} is full: vllm {NEW} needs about 0.9 GB" in refusal(NEW)
    assert entries(cache) == [".lock"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_while_a_wheel_is_unpacked(index, cache, monkeypatch, code):
    def extractall(archive, folder, names):
        archive.extract(names[0], folder)
        raise OSError(code, os.strerror(code))

    index.offer()
    monkeypatch.setattr(zipfile.ZipFile, "extractall", extractall)
    assert "is full" in refusal(NEW)
    assert entries(cache) == [".lock"]


def test_a_cache_that_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MRV2LAB_CACHE", str(tmp_path / "file"))
    assert "cannot be filled (Not a directory); set MRV2LAB_CACHE" in refusal(NEW)


def test_a_python_without_pip(monkeypatch):
    without = [sys.executable, "-c", "import sys; sys.exit(sys.executable + ': No module named pip')"]
    monkeypatch.setattr(releases, "_pip_download", lambda: without)
    assert f"has no pip to fetch vllm {NEW} with; run: {sys.executable} -P -m ensurepip" in refusal(NEW)


def test_what_pip_says_otherwise_is_not_passed_on(monkeypatch):
    other = [sys.executable, "-c", "import sys; sys.exit('ERROR: https://127.0.0.1/ is odd')"]
    monkeypatch.setattr(releases, "_pip_download", lambda: other)
    assert f"pip cannot fetch vllm {NEW}; to see why, run: " in refusal(NEW)


# ---- other processes ----

FETCH = f"from mrv2lab.upstream import releases; print(releases.fetch({NEW!r}).path)"
DIES_HALFWAY = f"""
import os, signal
from mrv2lab.upstream import process, releases
def unpack(wheel, folder):
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").touch()
    os.kill(os.getpid(), signal.SIGKILL)
releases._unpack = unpack
releases.fetch({NEW!r})
"""


def start(code):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_fill_the_cache_once(index, cache):
    index.offer()
    index.delay_s = 0.5
    both = [start(FETCH), start(FETCH)]
    said = [process.communicate(timeout=60) for process in both]
    assert said == [(f"{cache / NEW}\n", "")] * 2
    assert len(index.downloads) == 1
    assert entries(cache) == [".lock", NEW]


def test_a_killed_process_leaves_nothing_that_counts(index, cache):
    index.offer()
    assert start(DIES_HALFWAY).wait(timeout=60) == -signal.SIGKILL
    assert cached(NEW) is None
    [leftover] = cache.glob(".unfinished-*")
    assert (leftover / "fresh" / "vllm").exists()
    assert kept(fetch(NEW)) == ALL_KEPT
    assert entries(cache) == [".lock", NEW]
