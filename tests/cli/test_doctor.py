"""doctor: each line says what is there or the command that fixes it; the status says whether
kernels can run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.cli import doctor, main
from tritongemm.cli.config_check import damaged
from tritongemm.cli.doctor import Check, Diagnosis, interpreter_obstacle, release
from tritongemm.device import device_named
from tritongemm.errors import UsageError
from tritongemm.records.installed import TESTED

CHECKOUT = Path(tritongemm.__file__).resolve().parent.parent
FOR_GPU = ("python", "torch", "triton", "GPU", "C compiler", "Python headers", "cache", "configs")
FOR_INTERPRETER = ("python", "torch", "triton", "interpreter", "configs")


def diagnosis(*missing: str) -> Diagnosis:
    names = dict.fromkeys(FOR_GPU + FOR_INTERPRETER)
    return Diagnosis(tuple(Check(name, name not in missing, "", "fix it") for name in names))


@pytest.mark.parametrize("version, expected", [
    ("3.6.0", (3, 6, 0)), ("2.13.0+cpu", (2, 13, 0)), ("2.4.0rc1", (2, 4, 0)), ("", ()),
    ("unknown", ())])
def test_release_reads_the_numbers_of_a_version(version, expected):
    assert release(version) == expected


@pytest.mark.parametrize("torch, triton, says", [
    ("2.11.0+cu130", "3.6.0", "tested: the GPU tests"),
    ("2.13.0+cpu", "3.7.1", "tested: all tests that need no GPU"),
    ("2.14.0", "3.9.0", "this pair was not tested"), ("2.13.0", "3.6.0", "2.13 with 3.7")])
def test_an_untested_pair_of_versions_is_named(torch, triton, says):
    check, = doctor._pair(Check("torch", True, torch), Check("triton", True, triton))
    assert check.ok and says in check.detail
    assert not list(doctor._pair(Check("torch", True, torch), Check("triton", False, "absent")))


def test_the_manual_lists_the_pairs_that_were_tested():
    text = (CHECKOUT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    table = text.partition("| torch | Triton | tested |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| {torch} | {triton} | {what} |"
                                  for (torch, triton), what in TESTED.items()]


@pytest.mark.parametrize("triton, numpy, works", [
    ("3.6.0", "2.4.0", False), ("3.6.0", "2.4.6", False), ("3.6.0", "3.0.0", False),
    ("3.6.0", "2.3.5", True), ("3.6.0", "1.26.4", True), ("3.7.1", "2.4.6", True),
    ("3.10.0", "2.4.6", True)])
def test_the_pair_that_does_not_work_is_known(triton, numpy, works):
    obstacle = interpreter_obstacle(triton, numpy)
    assert (obstacle is None) == works
    if obstacle:
        assert triton in obstacle and numpy in obstacle and "numpy < 2.4" in obstacle


def test_a_missing_line_names_the_command_that_fixes_it():
    assert str(Check("torch", False, "not installed", "pip install torch")).splitlines() == [
        "missing torch               not installed", f"{'':28}-> pip install torch"]
    assert "->" not in str(Check("torch", True, "2.13.0", "pip install torch"))


@pytest.mark.parametrize("missing", FOR_GPU)
def test_a_gpu_needs_each_of_these(missing):
    assert diagnosis().gpu
    assert not diagnosis(missing).gpu


@pytest.mark.parametrize("missing", FOR_INTERPRETER)
def test_the_interpreter_needs_each_of_these(missing):
    assert diagnosis("GPU").interpreter
    assert not diagnosis("GPU", missing).interpreter


@pytest.mark.parametrize("missing, status, says", [
    ((), 0, "runs its kernels on this GPU"),
    (("GPU",), 0, "TRITON_INTERPRET=1"),
    (("GPU", "interpreter"), 1, "every call to torch"),
    (("C compiler", "interpreter"), 1, "every call to torch"),
    (("GPU", "torch", "triton", "interpreter"), 1, "Without torch"),
])
def test_the_status_says_whether_kernels_can_run(missing, status, says, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "diagnose", lambda: diagnosis(*missing))
    assert doctor.run(argparse.Namespace(run_trial=False, check_cache=False)) == status
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("gpu, device", [(True, "cuda"), (False, "cpu")])
@pytest.mark.parametrize("good", [True, False])
def test_a_trial_decides_the_status(gpu, device, good, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(doctor, "diagnose", lambda: diagnosis(*([] if gpu else ["GPU"])))
    monkeypatch.setattr(doctor, "trial", lambda name: asked.append(name) or Check(
        "trial", good, "it said so", "fix"))
    assert doctor.run(argparse.Namespace(run_trial=True, check_cache=False)) == (0 if good else 1)
    assert asked == [device]
    assert "it said so" in capsys.readouterr().out


def test_a_package_too_old_or_broken_is_missing(monkeypatch, tmp_path):
    (tmp_path / "oldpackage.py").write_text("__version__ = '2.9.1'")
    (tmp_path / "brokenpackage.py").write_text("raise OSError('libcudart.so.13: no such file')")
    (tmp_path / "needypackage.py").write_text("import absent_dependency_of_it")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(doctor.MINIMUM, "oldpackage", (2, 10))
    old, broken, needy = map(doctor._import, ("oldpackage", "brokenpackage", "needypackage"))
    assert not old.ok and "2.9.1 is older than 2.10" in old.detail
    assert "'oldpackage>=2.10'" in old.fix
    assert not broken.ok and "libcudart.so.13" in broken.detail
    assert not needy.ok and "absent_dependency_of_it" in needy.detail


def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRITONGEMM_CACHE_DIR", str(tmp_path / "file" / "below"))
    settings.reload()
    check = doctor._cache()
    assert not check.ok and "TRITONGEMM_CACHE_DIR" in check.fix


def test_a_misspelled_variable_is_named_with_the_closest_setting(monkeypatch):
    for name in [x for x in os.environ if x.startswith(settings.PREFIX)]:
        monkeypatch.delenv(name)
    assert doctor._environment().ok
    monkeypatch.setenv("TRITONGEMM_POLICY", "own")
    assert doctor._environment().ok
    monkeypatch.setenv("TRITONGEMM_POLCY", "own")
    monkeypatch.setenv("TRITONGEMM_ZZZ", "1")
    check = doctor._environment()
    assert str(check).startswith("unknown environment") and "TRITONGEMM_POLCY" in check.detail
    assert check.fix == ("rename TRITONGEMM_POLCY to TRITONGEMM_POLICY, or unset it; "
                         "unset TRITONGEMM_ZZZ")


def test_no_configs_folder_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITONGEMM_CONFIG_DIR", str(tmp_path / "nowhere"))
    settings.reload()
    (check,) = doctor._configs()
    assert not check.ok and "nowhere" in check.detail
    assert check.fix == "correct or unset TRITONGEMM_CONFIG_DIR and TRITONGEMM_CONFIG_ONLY"


def test_a_package_without_its_configs_is_reinstalled(monkeypatch):
    def gone():
        raise UsageError("no configs/ folder")

    monkeypatch.setattr(settings, "config_roots", gone)
    assert "--force-reinstall FILE.whl" in doctor._configs()[0].fix


@pytest.mark.parametrize("slug, sms, says", [
    ("nvidia-h200", 132, "{own} for nvidia-h200; else the model of nvidia-h200 chooses"),
    ("nvidia-h100-80gb-hbm3", 132, "{own} for nvidia-h100-80gb-hbm3; {h200} of its sibling "
                                   "nvidia-h200; else the model of nvidia-h200 and "
                                   "nvidia-h100-80gb-hbm3 chooses"),
    ("nvidia-h800", 132, "none for nvidia-h800; {h200} of its sibling nvidia-h200; else the model "
                         "of nvidia-h200 chooses"),
    ("nvidia-h100-pcie", 114, "none for nvidia-h100-pcie; else the model of nvidia-h200 chooses"),
    ("nvidia-l40s", 142, "none for nvidia-l40s; else the nearest row; where none is near, torch "
                         "runs products until `tritongemm calibrate --quick` (policy auto)")])
def test_whose_measurements_choose_is_said(monkeypatch, slug, sms, says):
    arch = 89 if slug == "nvidia-l40s" else 90
    device = replace(device_named("nvidia-h200"), slug=slug, num_sms=sms, arch=arch)
    monkeypatch.setattr("tritongemm.device.current_device", lambda: device)
    *_, check = doctor._configs()
    own, h200 = (len(list((settings.config_root() / "tuned" / one).glob("*.json")))
                 for one in (slug, "nvidia-h200"))
    assert check.detail == says.format(own=own, h200=h200)
    assert check.ok is (slug != "nvidia-l40s")


def seen_by_torch(monkeypatch, major: int, minor: int) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (major, minor))


def test_shipped_kernels_of_another_architecture_are_built_for_it(monkeypatch):
    seen_by_torch(monkeypatch, 8, 9)
    assert "calibrate --quick, then" in (fix := doctor._shipped(True).fix) and "--arch 89" in fix
    seen_by_torch(monkeypatch, 9, 0)
    assert "--arch" not in doctor._shipped(True).fix


def test_a_gpu_that_no_kernel_runs_on_gets_no_advice_to_tune(monkeypatch):
    seen_by_torch(monkeypatch, 7, 5)
    device = replace(device_named("nvidia-h200"), slug="tesla-t4", arch=75)
    monkeypatch.setattr("tritongemm.device.current_device", lambda: device)
    for check in (doctor._configs()[-1], doctor._shipped(True)):
        assert not check.ok and check.fix == "see GPU above"


def test_a_driver_that_answers_with_an_error_is_missing(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'Driver/library version mismatch' >&2\nexit 18\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor._driver()
    assert not check.ok and "Driver/library version mismatch" in check.detail
    smi.write_text("#!/bin/sh\necho 580.65.06\n")
    assert str(doctor._driver().detail) == "580.65.06"


def test_a_setting_that_cannot_be_read_is_a_usage_error(monkeypatch, capsys):
    monkeypatch.setenv("TRITONGEMM_LOG", "loud")
    settings._current = None
    assert main(["doctor"]) == 2
    assert "TRITONGEMM_LOG='loud'" in capsys.readouterr().err


def test_works_with_no_torch_at_all():
    # -S leaves site-packages out: this Python has the standard library and the checkout.
    done = subprocess.run([sys.executable, "-S", "-m", "tritongemm", "doctor"], cwd=CHECKOUT,
                          env=settings.child_environment(PYTHONPATH=""), capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    torch = next(i for i, line in enumerate(lines) if line.startswith("missing torch"))
    assert lines[torch + 1].strip().endswith("-m pip install torch")
    assert "Without torch" in lines[-1]


def test_every_line_of_this_machine_is_ok_or_fixed():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    found = doctor.diagnose()
    assert found.ok("python", "torch", "torch with triton", "numpy", "pandas", "configs")
    assert all(check.ok or check.fix for check in found.checks)
    assert len({check.name for check in found.checks}) == len(found.checks)


def test_doctor_lists_where_tables_come_from(tmp_path):
    mine, users = tmp_path / "mine", tmp_path / "users"
    table = users / "tuned" / "nvidia-h200" / "mm-bf16-ieee-nt.json"
    mine.mkdir()
    table.parent.mkdir(parents=True)
    table.write_bytes((settings.shipped_root() / table.relative_to(users)).read_bytes())
    with settings.override(config_dir=mine, user_dir=users):
        details = [check.detail for check in doctor._configs() if check.name.startswith("configs")]
    assert details[0] == f"TRITONGEMM_CONFIG_DIR: {mine}, 0 tuned tables; publish writes here"
    assert details[1] == f"your own: {users}, 1 tuned table"
    assert details[2].startswith(f"shipped: {settings.shipped_root()}, ")


TUNED = "tuned/nvidia-h200/mm-bf16-ieee-nt.json"
DAMAGES = {
    "devices/nvidia-x1.json": "{", "spaces/tiled.json": "[]", "spaces/ladder/naive.json": "",
    "calibration/nvidia-h200.json": '{"a": NaN}', TUNED: "null"}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named_and_its_folder_is_not_ok(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(DAMAGES[name])
    with settings.override(config_dir=tmp_path):
        folder, file, *_ = doctor._configs()
    assert (folder.name, folder.ok, file.ok) == ("configs", False, False)
    assert "1 damaged" in folder.detail and str(folder).startswith("damaged configs")
    assert str(path) in file.detail and str(path) in file.fix
    assert diagnosis().gpu and Diagnosis((*diagnosis().checks, folder)).gpu  # calls go on


@pytest.mark.parametrize("change", [
    {"device": "nvidia-b200"}, {"layout": "nn"}, {"arch": 80},
    {"rows": [{"config": {"block_m": 64, "block_n": 64, "block_k": 32, "new": 1}}]}], ids=str)
def test_a_table_that_calls_would_not_use_in_full_is_damaged(tmp_path, change):
    table = json.loads((settings.shipped_root() / TUNED).read_text())
    if "rows" in change:
        change = {"rows": [{**table["rows"][0], **change["rows"][0]}]}
    path = tmp_path / TUNED
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**table, **change}))
    (error,) = damaged(tmp_path)
    assert str(path) in str(error)


def test_no_shipped_file_is_damaged():
    assert damaged(settings.shipped_root()) == []


def test_a_pipe_among_the_files_does_not_hang_doctor(tmp_path):
    (tmp_path / "devices").mkdir()
    os.mkfifo(tmp_path / "devices" / "z.json")
    (tmp_path / "devices" / "y.json").symlink_to("/dev/zero")
    assert ["regular file" in str(error) for error in damaged(tmp_path)] == [True, True]


def test_without_a_device_file_the_gpu_is_not_blamed_where_none_is_needed(tmp_path, monkeypatch):
    from tritongemm import device

    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "nvidia-h200.json").write_text("{")
    device.interpreter_device.cache_clear()
    with settings.override(config_dir=tmp_path, config_only=True, interpret=True):
        *_, file, tables = doctor._configs()
    assert "nvidia-h200.json" in file.detail
    assert "no device of sm_90" in tables.detail and "device files" in tables.fix
