"""explain: its arguments become a problem and a device; ops.explain does the rest."""

from __future__ import annotations

import sys
import types

import pytest

from tritongemm.cli import explain as verb
from tritongemm.cli import main
from tritongemm.device import device_named
from tritongemm.errors import DeviceError
from tritongemm.problem import GemmProblem


@pytest.fixture
def asked(monkeypatch):
    """What the command asked of ops.explain, which is replaced."""
    calls = []
    module = types.ModuleType("tritongemm.ops.explain")
    module.explain_problem = lambda problem, device: (
        calls.append((problem, device)) or "the explanation")
    monkeypatch.setitem(sys.modules, "tritongemm.ops.explain", module)
    return calls


def test_arguments_become_the_problem_and_the_device(asked, capsys):
    assert main(["explain", "4096", "6144", "512", "--dtype", "fp32", "--layout", "nt", "--batch",
                 "3", "--precision", "tf32", "--epilogue", "bias+gelu", "--device-name",
                 "nvidia-h200"]) == 0
    assert asked == [(GemmProblem.contiguous(4096, 6144, 512, batch=3, dtype="fp32", layout="nt",
                                             precision="tf32", epilogue="bias+gelu"),
                      device_named("nvidia-h200"))]
    assert capsys.readouterr().out == "the explanation\n"


def test_the_defaults_are_one_bf16_product_of_row_major_operands(asked):
    assert main(["explain", "5", "6", "7", "--device-name", "nvidia-h200"]) == 0
    assert asked[0][0] == GemmProblem.contiguous(5, 6, 7)


def test_extents_may_be_named_as_of_bench(asked):
    named = ["--k", "7", "--m", "5", "--n", "6"]
    assert main(["explain", *named, "--device-name", "nvidia-h200"]) == 0
    assert asked[0][0] == GemmProblem.contiguous(5, 6, 7)


@pytest.mark.parametrize("extents", [
    [], ["5", "6"], ["5", "6", "7", "--m", "5"], ["5", "--n", "6", "--k", "7"],
    ["--m", "5", "--n", "6"]], ids=str)
def test_extents_that_are_missing_or_given_twice_are_refused(extents, asked, capsys):
    assert main(["explain", *extents, "--device-name", "nvidia-h200"]) == 2
    assert "tritongemm explain M N K" in capsys.readouterr().err and asked == []


def test_no_gpu_and_no_device_name_says_what_to_give(asked, monkeypatch, capsys):
    def nothing():
        raise DeviceError("torch sees no CUDA device")

    monkeypatch.setattr(verb, "current_device", nothing)
    assert main(["explain", "5", "6", "7"]) == 2
    error = capsys.readouterr().err
    assert "torch sees no CUDA device" in error and "--device-name nvidia-h200" in error
    assert asked == []


def test_the_gpu_of_this_machine_is_the_default(asked, monkeypatch):
    here = device_named("nvidia-b200")
    monkeypatch.setattr(verb, "current_device", lambda: here)
    assert main(["explain", "5", "6", "7"]) == 0
    assert asked[0][1] is here


@pytest.mark.parametrize("words, says", [
    (["5", "6", "7", "--device-name", "nvidia-gt710"], "nvidia-gt710"),
    (["5", "6", "99999999999"], "k=99999999999"),
    (["5", "6", "7", "--batch", "-1"], "batch=-1"),
    (["5", "6", "7", "--dtype", "bf16", "--precision", "tf32"], "precision tf32"),
])
def test_a_shape_or_device_that_cannot_be_is_one_line(words, says, asked, capsys):
    assert main(["explain", *words, *([] if "--device-name" in words
                                      else ["--device-name", "nvidia-h200"])]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert asked == []


@pytest.mark.parametrize("words", [
    ["5", "6", "seven"], ["5", "6", "7", "--dtype", "int3"],
    ["5", "6", "7", "--layout", "zz"], ["5", "6", "7", "--precision", "high"]])
def test_wrong_arguments_are_a_usage_error(words, asked, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["explain", *words])
    assert ended.value.code == 2
    assert "usage: tritongemm explain" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_shipped_device_is_explained_with_no_gpu(dtype, capsys):
    pytest.importorskip("tritongemm.ops.explain")
    assert main(["explain", "4096", "4096", "4096", "--dtype", dtype, "--layout", "nt",
                 "--device-name", "nvidia-h200"]) == 0
    text = capsys.readouterr().out
    assert "4096x4096x4096" in text and "nvidia-h200" in text.lower().replace(" ", "-")


@pytest.mark.parametrize("m, says", [
    (1, "A is read as bf16, by gemv_1x"), (16, "A is read as bf16, by simt_"),
    (2048, "A is read as bf16, by split_product_")])
def test_16_bit_inputs_with_float32_weights_are_explained_as_mixed(m, says, capsys):
    assert main(["explain", str(m), "4096", "4096", "--dtype", "bf16", "--dtype-b", "fp32",
                 "--layout", "nt", "--device-name", "nvidia-h200"]) == 0
    out = capsys.readouterr().out
    assert f"{m}x4096x4096 fp32 nt fp16x3" in out
    assert out.splitlines()[-1].startswith(f"mixed      with mixed=True {says}")


@pytest.mark.parametrize("words", (["--precision", "ieee"], ["--layout", "tn", "--k", "77"]))
def test_a_product_that_no_kernel_reads_converts_a_16_bit_input(words, capsys):
    assert main(["explain", "--m", "17", "--n", "4096", "--k", "4096", "--dtype", "bf16",
                 "--dtype-b", "fp32", "--device-name", "nvidia-h200", *words]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "mixed      with mixed=True A is converted from bf16 first, then as above"
