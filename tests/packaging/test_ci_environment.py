"""What CI installs: pins that hold for a Python, and a lock that has a hash for each file."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("ci_environment", CHECKOUT / ".ci/environment.py")
assert _SPEC is not None and _SPEC.loader is not None
environment = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(environment)

CONSTRAINTS = (CHECKOUT / "constraints.txt").read_text()
PYTHONS = ((3, 10, 0), (3, 11, 0), (3, 11, 7), (3, 12, 1), (3, 13, 0))


def locked() -> list[str]:
    """Each requirement of the lock on one line, with its hashes."""
    text = (CHECKOUT / ".ci/locked.txt").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_markers_of_the_python_are_honoured():
    text = ('# a comment\n\nnumpy==2.2.6; python_version < "3.11"\n'
            'numpy==2.4.6; python_version >= "3.11"\nrich==15.0.0\n'
            'late==1.0; python_full_version >= "3.11.5"\n')
    assert environment.pins(text, (3, 10, 9)) == {"numpy": "numpy==2.2.6", "rich": "rich==15.0.0"}
    assert environment.pins(text, (3, 11, 4))["numpy"] == "numpy==2.4.6"
    assert [("late" in environment.pins(text, (3, 11, patch))) for patch in (4, 5)] == [False, True]


@pytest.mark.parametrize("line", ["numpy>=2", 'numpy==2.2.6; sys_platform == "linux"', "numpy"])
def test_a_pin_that_is_not_understood_is_named(line):
    with pytest.raises(ValueError, match=re.escape(line)):
        environment.pins(line)


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_each_python_has_one_version_of_what_is_pinned(python):
    names = {re.split("==", line)[0] for line in CONSTRAINTS.splitlines()
             if "==" in line and not line.startswith("#")}
    of_the_site = {"mkdocs", "mkdocs-material", "mkdocs-autorefs", "mkdocstrings",
                   "mkdocstrings-python", "griffelib", "pymdown-extensions"}
    assert names - set(environment.pins(CONSTRAINTS, python)) <= (
        of_the_site if python < (3, 11, 5) else set())


def test_every_file_of_the_lock_has_a_hash_and_the_version_of_the_constraints():
    lines = locked()
    assert len(lines) > 80
    for line in lines:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), line[:80]
    versions: dict[str, set[str]] = {}
    for line in lines:
        name, version = line.split()[0].split("==")
        versions.setdefault(name, set()).add(version)
    assert not {"torch", "triton"} & set(versions)
    for python in PYTHONS:
        for name, pin in environment.pins(CONSTRAINTS, python).items():
            if name not in ("torch", "triton"):
                assert pin.partition("==")[2] in versions[name], pin


def test_the_lock_has_all_that_the_package_and_its_tests_ask_for():
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    extras = parser["options.extras_require"]
    wanted = "\n".join([parser["options"]["install_requires"],
                        *(extras[name] for name in ("test", "report", "cpu", "cuda13", "docs"))])
    names = {re.split(r"[<>=\[; ]", line)[0].lower() for line in wanted.splitlines() if line}
    assert names - {"torch", "triton"} <= {line.split("==")[0] for line in locked()}


def test_an_environment_made_in_another_has_its_packages_and_libraries(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "add_missing", lambda *_: None)
    folder, outer = tmp_path / "inner", sysconfig.get_paths()["purelib"]
    monkeypatch.setattr(sys, "prefix", "/outer")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    environment.reuse_installed(folder, folder / "bin" / "python")
    pth, = folder.glob("lib/python*/site-packages/tritongemm-checkout.pth")
    lines = pth.read_text().splitlines()
    assert lines[0] == str(CHECKOUT)
    assert f"import site; site.addsitedir({outer!r})" in lines
    # Where cuda.pathfinder looks for NVRTC.
    assert "import site; site.PREFIXES.append('/outer')" in lines


def test_an_activated_environment_is_made_anew_by_the_python_below_it(monkeypatch, tmp_path):
    def execv(python, words):
        raise SystemExit([python, *words])

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "_base_executable", "/usr/bin/python3")
    monkeypatch.setattr(sys, "argv", ["environment.py", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        environment.main()
    assert ended.value.code == ["/usr/bin/python3", "/usr/bin/python3", "environment.py",
                                str(tmp_path)]


def test_an_index_that_lacks_a_locked_version_installs_by_the_constraints(monkeypatch, capsys):
    class Done:
        returncode, stderr = 1, "ERROR: No matching distribution found for rich==15.0.0\n"

    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: Done)
    assert not environment.locked_install(("pip", "install"))
    assert "without hashes" in capsys.readouterr().out
    Done.returncode, Done.stderr = 0, ""
    assert environment.locked_install(("pip", "install"))


@pytest.mark.parametrize("lock_fits", (True, False))
def test_nvrtc_has_the_version_that_torch_wants(lock_fits, monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(environment, "run", lambda *words: commands.append(list(map(str, words))))
    monkeypatch.setattr(environment, "locked_install", lambda pip: lock_fits)
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: None)
    environment.install_everything(tmp_path, tmp_path / "bin" / "python")
    install, = (words for words in commands if "-c" in words)
    constraints = Path(install[install.index("-c") + 1]).read_text()
    assert "nvidia-cuda-nvrtc" in CONSTRAINTS and "nvidia-cuda-nvrtc" not in constraints
    assert len(constraints.splitlines()) == len(CONSTRAINTS.splitlines()) - 1


def test_a_wrong_hash_ends_the_installation(monkeypatch):
    class Done:
        returncode, stderr = 1, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n"

    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: Done)
    with pytest.raises(SystemExit):
        environment.locked_install(("pip", "install"))
