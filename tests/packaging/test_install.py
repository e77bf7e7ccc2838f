"""The ways to have the package: a pure wheel, one with the native dispatcher for this machine, an
editable install, a bare checkout.

Each is built from a copy of the tree and tried in an environment that has nothing else, so what
is proved is that the package alone finds its configs and suites, and that nothing is downloaded.
"""

from __future__ import annotations

import configparser
import dataclasses
import email
import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.native import build, wheels
from tritongemm.native.compiler import COMPILERS

CHECKOUT = Path(tritongemm.__file__).resolve().parent.parent
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")

#: Run in the new environment: where the package lies, what it finds, what it loaded.
PROBE = """
import json, sys
import tritongemm
loaded = sorted({"torch", "triton", "pandas"} & set(sys.modules))
from tritongemm.settings import config_root, shipped_root
from tritongemm.device import known_devices
from tritongemm.records.suites import known_suites, read_suite, suite_path
names = known_suites()
print(json.dumps({
    "file": tritongemm.__file__, "version": tritongemm.__version__, "loaded": loaded,
    "configs": str(shipped_root()), "written": str(config_root()),
    "devices": sorted(known_devices()),
    "spaces": sorted(p.stem for p in (shipped_root() / "spaces").glob("*.json")),
    "suites": sorted(str(n) for n in names),
    "square": len(read_suite(suite_path("square")))}))
"""


def run(*words: object, **environment: str) -> str:
    done = subprocess.run([str(word) for word in words], cwd="/", capture_output=True, text=True,
                          env=settings.child_environment(**environment), timeout=300,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_python(folder: Path) -> Path:
    """An environment with no packages at all, not even pip."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def probe(python: Path, **environment: str) -> dict:
    return json.loads(run(python, "-c", PROBE, **environment).splitlines()[-1])


def expected() -> dict:
    """What a complete package holds: what the checkout holds."""
    def stems(folder: str, pattern: str) -> list[str]:
        return sorted(p.stem for p in (CHECKOUT / folder).glob(pattern))

    return {"version": tritongemm.__version__, "loaded": [],
            "devices": stems("configs/devices", "*.json"),
            "spaces": stems("configs/spaces", "*.json"),
            "suites": stems("perf/suites", "*.csv"),
            "square": len((CHECKOUT / "perf/suites/square.csv").read_text().splitlines()) - 1}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the files that a build reads, so that it leaves nothing in the checkout."""
    if not (CHECKOUT / "setup.cfg").is_file():
        pytest.skip("the tests run against an installed package, not a checkout")
    copy = tmp_path_factory.mktemp("tree") / "checkout"
    skipped = shutil.ignore_patterns("__pycache__", "results", "*.egg-info", "*.lock")
    for name in ("tritongemm", "configs", "perf"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=skipped)
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def build_path(tmp_path_factory) -> str:
    """A folder with setuptools alone, to stand in PYTHONPATH while pip builds into an
    environment that has none (the tests' own site-packages would also show pip this package)."""
    # Without what pyproject.toml asks for, pip would have to download it.
    for module, oldest in (("setuptools", "70.1"), ("pip", "22.3")):
        pytest.importorskip(module, minversion=oldest)
    folder = tmp_path_factory.mktemp("build")
    for name in ("setuptools", "wheel"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        site = Path(importlib.metadata.distribution(name).locate_file(""))
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not top.endswith(".pth"):
                (folder / top).symlink_to(site / top)
    return str(folder)


@pytest.fixture(scope="module")
def wheel(tree, build_path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", *OFFLINE, "--wheel-dir", folder, tree)
    (built,) = folder.glob("*.whl")
    return built


def test_setup_cfg_names_every_package_folder():
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    named = set(parser["options"]["packages"].split()) - {"tritongemm.configs",
                                                         "tritongemm.suites"}
    found = {".".join(path.parent.relative_to(CHECKOUT).parts)
             for path in (CHECKOUT / "tritongemm").rglob("*.py")}
    assert named == found


def test_constraints_pin_a_torch_and_its_triton():
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines and "triton==3.7.1" in lines


def test_requirements_have_no_upper_pins():
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    requirements = parser["options"]["install_requires"]
    assert "<" not in requirements and "~=" not in requirements
    versions = [line for line in requirements.splitlines() if line.startswith("triton")]
    assert versions == [line for line in versions if 'platform_system == "Linux"' in line] != []


def test_a_wheel_holds_the_data_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    data = {f"tritongemm/{p.relative_to(CHECKOUT)}" for p in (CHECKOUT / "configs").rglob("*.json")}
    data |= {f"tritongemm/suites/{p.name}" for p in (CHECKOUT / "perf/suites").glob("*.csv")}
    data |= {str(p.relative_to(CHECKOUT)) for suffix in ("py", "cu", "cuh", "css", "js")
             for p in (CHECKOUT / "tritongemm").rglob(f"*.{suffix}")}
    data |= {"tritongemm/py.typed"}
    assert sorted(data - set(names)) == []
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tritongemm"}


def test_the_package_page_has_its_links_and_the_readme(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_string(archive.read(name).decode("utf-8"))
    links = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert {"Source", "Documentation", "Changelog", "Results"} <= set(links)
    assert all(link.startswith("https://") for link in links.values())
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert metadata.get_payload().strip() == (CHECKOUT / "README.md").read_text().strip()


def test_a_wheel_in_a_clean_environment_finds_its_files(wheel, tmp_path):
    python = clean_python(tmp_path / "env")
    run(*PIP, "--python", python, "install", *OFFLINE, wheel)
    found = probe(python, TRITONGEMM_USER_DIR=str(tmp_path / "user"))
    assert found.pop("written") == str(tmp_path / "user")  # never into site-packages
    package = Path(found.pop("file")).parent
    assert package.is_relative_to(tmp_path / "env")
    assert Path(found.pop("configs")) == package / "configs"
    assert found == expected()
    command = tmp_path / "env" / "bin" / "tritongemm"
    assert run(command, "--version").strip() == f"tritongemm {tritongemm.__version__}"


@pytest.mark.thorough
def test_an_editable_install_finds_the_checkouts_files(tree, build_path, tmp_path):
    python = clean_python(tmp_path / "env")
    run(*PIP, "--python", python, "install", *OFFLINE, "--editable", tree, PYTHONPATH=build_path)
    found = probe(python)
    assert Path(found.pop("file")).parent == tree / "tritongemm"
    assert Path(found.pop("configs")) == Path(found.pop("written")) == tree / "configs"
    assert found == expected()
    command = tmp_path / "env" / "bin" / "tritongemm"
    assert run(command, "--version").strip() == f"tritongemm {tritongemm.__version__}"


def test_a_bare_checkout_finds_its_files(tree, tmp_path):
    python = clean_python(tmp_path / "env")
    found = probe(python, PYTHONPATH=str(tree))
    assert Path(found.pop("file")).parent == tree / "tritongemm"
    assert Path(found.pop("configs")) == Path(found.pop("written")) == tree / "configs"
    assert found == expected()


def test_a_config_folder_of_ones_own_takes_nothing_away(tree, tmp_path):
    python = clean_python(tmp_path / "env")
    (tmp_path / "mine").mkdir()
    found = probe(python, PYTHONPATH=str(tree), TRITONGEMM_CONFIG_DIR=str(tmp_path / "mine"))
    assert Path(found.pop("written")) == tmp_path / "mine"
    assert Path(found.pop("configs")) == tree / "configs"
    del found["file"]
    assert found == expected()


#: Run with the installed wheel: two calls, the first by the Python path, the second in C++. A C
#: callback of tests/native stands for the driver.
CALLS = """
import importlib.util, sys
import pytest, torch
import tritongemm as tg
from tritongemm.ops import native, plans
spec = importlib.util.spec_from_file_location("fake", sys.argv[1])
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
driver = fake.FakeDriver()
plans.make_plan = lambda problem, config, device, geometry, where: fake.FakePlan(
    driver, problem, geometry)
tg.ops.calls._alone = lambda: True
a, b = torch.randn(33, 17), torch.randn(17, 40)
for _ in range(2):
    torch.testing.assert_close(tg.mm(a, b), a @ b)
print(driver.by_python, driver.by_native, tg.__file__, getattr(native.table(), "__file__", None))
"""


@pytest.fixture(scope="module")
def library():
    """The native dispatcher, built for this torch."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("needs a C++ compiler")
    return build()


def calls(wheel: Path, folder: Path) -> list[str]:
    """What :data:`CALLS` prints with ``wheel`` installed, an empty cache and no compiler."""
    run(*PIP, "install", *OFFLINE, "--target", folder / "site", wheel)
    (folder / "bin").mkdir()
    said = run(sys.executable, "-c", CALLS, CHECKOUT / "tests/native/conftest.py",
               PYTHONPATH=str(folder / "site"), PATH=str(folder / "bin"), TRITON_INTERPRET="1",
               TRITONGEMM_NATIVE="1", TRITONGEMM_CACHE_DIR=str(folder / "cache")).split()
    assert not (folder / "cache/native").exists()
    assert Path(said[2]).is_relative_to(folder / "site")
    return said


@pytest.mark.thorough
def test_a_wheel_with_the_native_dispatcher_answers_calls_without_a_compiler(wheel, library,
                                                                             tmp_path):
    made = wheels.add(wheel, library, tmp_path)
    python, native, _, loaded = calls(made, tmp_path)
    assert (python, native) == ("1", "1")
    assert Path(loaded).is_relative_to(tmp_path / "site/tritongemm/native/prebuilt")


@pytest.mark.thorough
def test_with_a_library_of_another_torch_the_python_path_answers(wheel, library, tmp_path):
    other = dataclasses.replace(library.abi, torch="2.9.1+cpu")
    made = wheels.add(wheel, dataclasses.replace(library, abi=other), tmp_path)
    assert calls(made, tmp_path)[:2] == ["2", "0"]


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", (True, False))
def test_the_build_option_builds_the_dispatcher_if_there_is_a_compiler(tree, library, tmp_path,
                                                                       compiler):
    """A build without a compiler ends with the pure wheel."""
    path = {} if compiler else {"PATH": str(tmp_path / "empty"),
                                "TRITONGEMM_CACHE_DIR": str(tmp_path / "cache")}
    run(*PIP, "wheel", *OFFLINE, "--log", tmp_path / "log", "--wheel-dir", tmp_path / "out",
        "--config-settings=--build-option=--native", tree, **path)
    (made,) = (tmp_path / "out").glob("*.whl")
    names = zipfile.ZipFile(made).namelist()
    held = [name for name in names if name.startswith("tritongemm/native/prebuilt/")]
    assert made.name.endswith("-none-any.whl") == (not held) == (not compiler)
    if compiler:
        assert {name.split("/")[3] for name in held} == {library.abi.tag}
    else:
        assert "not built into the wheel: no C++ compiler" in (tmp_path / "log").read_text()
