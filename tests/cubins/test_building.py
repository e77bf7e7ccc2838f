"""Building a pack: what is compiled, what fits, the wheel, and the command."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

import pytest

from tritongemm import __version__, settings
from tritongemm.cli import doctor, main
from tritongemm.config import KernelConfig
from tritongemm.cubins import building, choosing
from tritongemm.cubins.choosing import PackChoice
from tritongemm.device import device_named
from tritongemm.errors import CompileError
from tritongemm.kernels import pack, store
from tritongemm.kernels.compile import binary_key, launch_key, launches_of
from tritongemm.kernels.store import Binary
from tritongemm.problem import GemmProblem
from tritongemm.workers.messages import Outcome

H200 = device_named("nvidia-h200")
PROBLEM = GemmProblem.contiguous(256, 512, 1024, layout="nt")
CONFIGS = [KernelConfig("tiled", block, 64, 32) for block in (32, 64, 128)]
CUBIN = (b"\x7fELF\x02\x01".ljust(18, b"\0") + b"\xbe\0").ljust(64, b"\0")


_PREPARE = building.prepare


def choice_of(config: KernelConfig) -> PackChoice:
    return PackChoice(H200.slug, PROBLEM, config, tuple(
        launch_key(x, 90) for x in launches_of(PROBLEM, config, H200)))


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiling is faked: what is asked for lies in a store of its own afterwards."""
    asked: list[KernelConfig] = []

    def compile_all(builds, arguments, **_):
        outcomes = {}
        for key, problem, config in builds:
            asked.append(config)
            if config.block_m == 128:
                outcomes[key] = Outcome("compile", "the assembler gave up")
                continue
            for launch in launches_of(problem, config, H200):
                store.save(binary_key(launch, 90), Binary(
                    launch.symbol, CUBIN, 4, 1, 0, 32, 0, (), ((8, 8),)))
            outcomes[key] = Outcome("ok")
        return outcomes

    monkeypatch.setattr(building, "compile_all", compile_all)
    monkeypatch.setattr(building, "prepare", lambda folder: folder.mkdir(
        parents=True, exist_ok=True))
    with settings.override(cache_dir=tmp_path / "cache", cubins=None):
        yield asked


def test_a_build_compiles_what_the_store_lacks_and_reports_what_failed(compiled, tmp_path):
    wanted = [choice_of(config) for config in CONFIGS]
    for times in (1, 2):
        built = building.build(wanted, wanted, tmp_path / "out", 90, max_bytes=10**6, workers=1)
        assert (built.pack.entries, len(built.failed), built.full) == (2, 1, False)
        assert built.failed[0][1] == "the assembler gave up"
        assert (built.served.served, built.served.problems) == (2, 3)
        assert len(compiled) == 2 + times  # the one that failed is tried again
    assert {*built.pack.keys()} == {key for choice in wanted[:2] for key in choice.keys}
    with settings.override(cubins=built.pack.folder):
        assert pack.found(90).pack is not None
        assert "chosen by other" not in doctor._shipped(False).detail
        with settings.override(policy="model"):
            assert "chosen by other tables" in doctor._shipped(False).detail
        assert (pack.prepared_folders()[0]).is_dir()


def test_the_size_is_kept_and_those_used_most_stay(compiled, tmp_path):
    wanted = [choice_of(config) for config in CONFIGS[:2]]
    one = building.build(wanted, wanted, tmp_path / "out", 90, max_bytes=1000, workers=1)
    assert one.full and one.pack.keys() == list(wanted[0].keys)
    with pytest.raises(CompileError, match="within 10 bytes"):
        building.build(wanted, wanted, tmp_path / "other", 90, max_bytes=10, workers=1)


@pytest.mark.thorough
def test_the_wheel_holds_the_pack_and_is_found_when_it_is_installed(compiled, tmp_path,
                                                                   monkeypatch):
    monkeypatch.setattr(building, "prepare", _PREPARE)
    for name, oldest in (("setuptools", "70.1"), ("pip", "22.3")):
        pytest.importorskip(name, minversion=oldest)
    wanted = [choice_of(CONFIGS[0])]
    built = building.build(wanted, wanted, tmp_path / "out", 90, max_bytes=10**6, workers=1)
    wheel = building.wheel(tmp_path / "out")
    assert wheel.name == f"tritongemm_cubins_sm90-{__version__}-py3-none-any.whl"
    for old in ("tritongemm_cubins_sm90/old.bin", "tritongemm_cubins_sm80/x.py"):
        made = tmp_path / "out" / "build" / "lib" / old  # of a build before
        made.parent.mkdir(parents=True, exist_ok=True)
        made.touch()
    wheel = building.wheel(tmp_path / "out")
    names = zipfile.ZipFile(wheel).namelist()
    assert not any("old" in name or "sm80" in name for name in names)
    assert {f"tritongemm_cubins_sm90/{x}" for x in ("__init__.py", pack.MANIFEST, pack.CUBINS)
            } <= {*names} and any("/prepared/calibration-" in name for name in names)
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                           "--no-index", "--target", tmp_path / "site", wheel],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    code = ("import sys; from tritongemm.kernels import pack; found = pack.found(90); "
            "print(found.pack.entries if found.pack else found.reason, "
            "[len(x.cubin) if x else x for x in [pack.load(sys.argv[1], 90)]])")

    def loaded() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *wanted[0].keys], capture_output=True, text=True,
            timeout=300, check=True, env=settings.child_environment(
                TRITONGEMM_CUBINS="", TRITONGEMM_LOG="warning",
                PYTHONPATH=f".:{tmp_path / 'site'}"))
        return done.stdout.strip() + done.stderr

    assert loaded() == f"{built.pack.entries} [{len(CUBIN)}]"
    cubins = tmp_path / "site/tritongemm_cubins_sm90" / pack.CUBINS
    cubins.write_bytes(cubins.read_bytes()[:-1] + b"!")
    assert "[None]" in loaded() and "SHA-256" in loaded()


def test_the_command_builds_and_says_what_other_problems_it_serves(compiled, tmp_path, monkeypatch,
                                                                   capsys):
    def chosen(problem, device):
        return PackChoice(device.slug, problem, CONFIGS[1], tuple(
            launch_key(x, 90) for x in launches_of(problem, CONFIGS[1], device)))

    monkeypatch.setattr(choosing, "chosen", chosen)
    folder = str(tmp_path / "out")
    words = ["--device-name", "nvidia-h200", "--workers", "1"]
    assert main(["cubins", "count", folder, "--problems", "30", *words]) == 0
    count = int(re.search(r"(\d+) distinct binaries", capsys.readouterr().out)[1])
    assert 5 < count < 30
    assert main(["cubins", "build", folder, "--problems", "30", "--max-size", "1MB", *words]) == 0
    said = capsys.readouterr().out
    assert f"{count} binaries" in said and "serves 100.00 % (30 of 30 problems" in said
    words += ["--cover", "0.3"]
    assert main(["cubins", "coverage", folder, "--problems", "20", "--seed", "9", *words]) == 0
    share = re.search(rf"{count} binaries serve ([\d.]+) % \(\d+ of 20", capsys.readouterr().out)
    assert 30 <= float(share[1]) < 100
    monkeypatch.setattr(choosing, "chosen", lambda problem, device: PackChoice(
        device.slug, problem, CONFIGS[0], ("another",)))
    assert main(["cubins", "coverage", folder, "--problems", "20", "--seed", "10", *words]) == 1


def test_where_no_kernel_runs_a_problem_there_is_nothing_to_build(tmp_path, capsys):
    assert main(["cubins", "count", str(tmp_path / "out"), "--problems", "3", "--arch", "80",
                 "--device-name", "nvidia-a100-sxm4-80gb", "--workers", "1"]) == 2
    assert "calibrate --quick" in capsys.readouterr().err


def test_coverage_without_a_pack_is_refused_before_the_work_and_makes_no_folder(
        tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(choosing, "choices", None)
    folder = tmp_path / "none"
    assert main(["cubins", "coverage", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"{folder} holds no pack" in said and f"tritongemm cubins build {folder}" in said
    assert not folder.exists()


@pytest.mark.parametrize(("words", "said"), [
    (["--max-size", "many"], "no size"), (["--cover", "2"], "no share"),
    (["--workers", "0"], "below 1"), (["--device-name", "nvidia-b200"], "not sm_90"),
    (["--dtype", ","], "names none")])
def test_wrong_arguments(words, said, tmp_path, capsys):
    try:
        status = main(["cubins", "count", str(tmp_path), "--problems", "2", *words])
    except SystemExit as error:
        status = error.code
    assert status == 2 and said in capsys.readouterr().err
