"""Which Triton the Gluon kernels are trusted with, and what runs where they are not."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from tritongemm import selection
from tritongemm.cli import doctor
from tritongemm.device import device_named
from tritongemm.errors import CompileError, UnsupportedError
from tritongemm.kernels import SPECS, gluon_support, violation
from tritongemm.kernels import compile as compiling
from tritongemm.problem import GemmProblem

H200 = device_named("nvidia-h200")
PROBLEM = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
#: The Gluon kernels, and a problem that each takes.
GLUON = {"warp_specialized": PROBLEM,
         "skinny": GemmProblem.contiguous(16, 4096, 4096, layout="nt")}


@pytest.fixture
def triton(monkeypatch):
    """Pretends that this version is installed."""
    def install(version):
        gluon_support.forget()
        monkeypatch.setattr(gluon_support, "triton_version", lambda: version)
    yield install
    monkeypatch.undo()
    gluon_support.forget()


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.8.0", "3.9.2", "3.7.0+git12ab"])
def test_a_known_version_is_trusted(version, triton):
    triton(version)
    assert gluon_support.obstacle() is None
    for kernel, problem in GLUON.items():
        assert violation(problem, SPECS[kernel].default(problem, H200), H200) is None


@pytest.mark.parametrize("version", ["3.10.0", "4.0.0", "3.5.1", "main"])
def test_an_unknown_version_is_not_trusted(version, triton):
    triton(version)
    assert version in gluon_support.obstacle()
    for kernel, problem in GLUON.items():
        broken = violation(problem, SPECS[kernel].default(problem, H200), H200)
        assert broken.rule == "gluon" and version in broken.message


def test_selection_has_the_other_kernels_for_an_unknown_version(triton):
    triton("3.10.0")
    for size in (16, 512, 4096):
        problem = GemmProblem.contiguous(size, 4096, 1024, layout="nt")
        assert selection.choose(problem, H200).config.kernel not in GLUON
        assert selection.default_config(problem, H200).kernel not in GLUON
        assert not {c.kernel for c in selection.candidates(problem, H200)} & set(GLUON)


def test_no_triton_is_no_obstacle_for_what_is_stored_or_asked(triton):
    triton("")
    assert gluon_support.obstacle() is None


def test_a_triton_without_gluon_is_seen_without_importing_it(triton, monkeypatch, tmp_path):
    (tmp_path / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(
        origin=str(tmp_path / "__init__.py")))
    triton("3.7.1")
    assert "without Gluon" in gluon_support.obstacle()


def test_an_import_that_fails_rules_the_kernels_out_for_the_process(triton, monkeypatch):
    pytest.importorskip("triton")
    triton("3.7.1")
    real = compiling.importlib.import_module

    def fails(name, *rest):
        if name.endswith("device.warp_specialized"):
            raise ImportError("cannot import name 'tma'")
        return real(name, *rest)

    monkeypatch.setattr(compiling.importlib, "import_module", fails)
    config = SPECS["warp_specialized"].default(PROBLEM, H200)
    with pytest.raises(CompileError, match="cannot import name 'tma'"):
        compiling.compile_launch(compiling.launches_of(PROBLEM, config, H200)[0], 90)
    assert "cannot import name 'tma'" in gluon_support.obstacle()
    assert selection.choose(PROBLEM, H200).config.kernel not in GLUON


def test_doctor_says_which_kernels_run(triton):
    pytest.importorskip("triton")
    triton("4.1.0")
    line = doctor._gluon(doctor.Check("triton", True, "4.1.0"))
    assert not line.ok and "4.1.0" in line.detail and "tl kernels run instead" in line.detail
    triton("3.7.1")
    assert doctor._gluon(doctor.Check("triton", True, "3.7.1")).ok
    assert not doctor._gluon(doctor.Check("triton", False, "not installed")).ok


def test_what_no_kernel_is_left_for_names_the_reason(triton, monkeypatch):
    triton("4.1.0")
    monkeypatch.setattr(selection.policy, "SPECS", {"warp_specialized": SPECS["warp_specialized"]})
    with pytest.raises(UnsupportedError, match=r"4\.1\.0"):
        selection.default_config(PROBLEM, H200)
