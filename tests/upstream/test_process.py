"""A probe's process: one release on its path, and one plain line whatever the release does to it.

The releases are made up here: folders that hold as much of a `vllm` as a test needs. A library that is not
there, what a release prints and the folder we are in are tried in processes as users start them.
"""

import os
import textwrap
from pathlib import Path

import pytest

import mrv2lab
from mrv2lab.upstream import process, releases
from mrv2lab.upstream.environment import ENVIRONMENT
from mrv2lab.upstream.platform import REPLACEMENTS
from mrv2lab.upstream.process import LibraryMissing, ProbeFailed, environment, run_variants, tell_rows
from mrv2lab.upstream.releases import TARGET, Release

CASE = "pp_eager_fallback"
NEW = "9.9.9"

PLATFORMS = """
class Platform: ...
class PlatformEnum: OOT = 1
"""
META = """
class LoRAKernelMeta:
    make = staticmethod(print)
"""


@pytest.fixture
def release(tmp_path, monkeypatch):
    """Write a release whose `vllm/__init__.py` holds this code, and have every version lead to it."""

    def write(code, modules=None):
        files = {"vllm/__init__.py": textwrap.dedent(code)} | (modules or {})
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    monkeypatch.setattr(releases, "fetch", lambda version: Release(version, tmp_path))
    return write


@pytest.fixture
def whole(release):
    """A release with all the modules that the platform looks for, and nothing in them."""
    names = {r.target.partition(":")[0] for r in REPLACEMENTS if r.target.startswith("vllm")}
    modules = {f"{name.replace('.', '/')}.py": "" for name in names} | {
        "vllm/platforms/__init__.py": "",
        "vllm/platforms/interface.py": PLATFORMS,
        "vllm/lora/ops/triton_ops/lora_kernel_metadata.py": META,
    }
    return lambda code="": release(f"__version__ = {NEW!r}\n{textwrap.dedent(code)}", modules)


@pytest.fixture
def forked(forked_module, monkeypatch):
    monkeypatch.setattr(process, "forks", forked_module)


def failure(version=NEW, *variants):
    """The one line that a user reads."""
    with pytest.raises(ProbeFailed) as caught:
        run_variants(CASE, variants, version) if variants else tell_rows(CASE, version)
    line = str(caught.value)
    assert "\n" not in line and line.startswith(f"{CASE} on vllm {version}: ")
    return line.removeprefix(f"{CASE} on vllm {version}: ")


# ---- the environment ----


def test_the_release_comes_first_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "fetch", lambda version: Release(version, tmp_path / version))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "another"))
    path = environment("0.21.0")["PYTHONPATH"].split(os.pathsep)
    ours = [str(tmp_path / "0.21.0"), str(Path(mrv2lab.__file__).parents[1])]
    assert path == [*ours, str(tmp_path / "another")]


def test_what_vllm_reads_is_set_whatever_the_user_has(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "fetch", lambda version: Release(version, tmp_path))
    monkeypatch.setenv("OF_THE_USER", "kept")
    for name in (*ENVIRONMENT, "PYTHONPYCACHEPREFIX"):  # bytecode there was never checked
        monkeypatch.setenv(name, "of the user")
    made = environment(TARGET)
    assert made["OF_THE_USER"] == "kept"
    assert {name: made[name] for name in ENVIRONMENT} == ENVIRONMENT and made["PYTHONPYCACHEPREFIX"] == ""


def test_a_release_that_cannot_be_had_starts_no_process_and_while_it_is_fetched_there_is_no_folder(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(process.tempfile, "tempdir", str(tmp_path))

    def fetch(version):
        assert [*tmp_path.iterdir()] == []
        raise releases.ReleaseUnavailable(f"no {version}")

    monkeypatch.setattr(releases, "fetch", fetch)
    monkeypatch.setattr(process.forks, "command", None)
    with pytest.raises(releases.ReleaseUnavailable, match=NEW):
        tell_rows(CASE, NEW)


# ---- releases that misbehave ----


def test_a_library_that_is_not_installed_is_named_and_how_to_get_it(release):
    release("import no_such_library.part")
    with pytest.raises(LibraryMissing) as caught:
        tell_rows(CASE, NEW)
    assert str(caught.value) == (
        f"{CASE} on vllm {NEW}: needs the library no_such_library, which is not installed: make source"
    )


def test_a_module_of_vllms_own_is_no_library(release, forked):
    release("import vllm.gone")
    assert failure() == "ModuleNotFoundError: No module named 'vllm.gone'"


def test_an_error_is_told_by_its_last_line(release, forked):
    release("raise RuntimeError('no driver')")
    assert failure() == "RuntimeError: no driver"


def test_a_process_that_is_killed_is_told_by_its_signal(release, forked):
    release("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert failure() == "the probe's process was ended by SIGKILL"


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_that_ends_without_a_word_or_a_result(status, release, forked):
    release(f"import os; os._exit({status})")
    assert failure() == f"exit status {status}, and not a word"


def test_a_process_that_hangs_is_ended(release, monkeypatch, forked):
    release("import time; time.sleep(60)")
    monkeypatch.setattr(process, "TIMEOUT_S", 3)
    assert failure().startswith("the probe had no result after 3 s and was ended: the machine is too busy")


def test_another_release_than_asked_for_is_not_probed(whole, forked):
    whole("__version__ = '9.9.8'")
    assert failure().endswith(f"BadInput: asked for vllm {NEW}, but 9.9.8 is first on the path")


# ---- what comes back ----


def test_what_a_release_prints_is_no_result(whole):
    whole("""
        import sys
        print('{"row": "", "word": "fixed", "observation": "printed"}', flush=True)
        print("a warning", file=sys.stderr)
    """)
    [cell] = tell_rows(CASE, NEW)
    assert cell.word == "unreachable"  # there is no model runner in it
    assert cell.observation.startswith("the probe does not fit: ModuleNotFoundError: No module named 'vllm.")


def test_a_variant_that_does_not_fit_is_no_outcome(whole, forked):
    whole()
    assert failure(NEW, "eager").endswith(f"SourceChanged: vllm {NEW} is installed; this is for =={TARGET}")


def test_neither_the_folder_we_are_in_nor_its_vllm_is_imported(whole, tmp_path, monkeypatch):
    whole()
    (tmp_path / "here" / "vllm").mkdir(parents=True)
    (tmp_path / "here" / "vllm" / "__init__.py").write_text("raise RuntimeError('from the folder we are in')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    assert tell_rows(CASE, NEW)[0].word == "unreachable"
