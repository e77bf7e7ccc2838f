"""What ``runs.json`` says of the problems of a bench."""

from __future__ import annotations

from types import SimpleNamespace

from tritongemm.cli import bench
from tritongemm.problem import GemmProblem


def test_the_record_names_what_the_problems_are_and_not_the_arguments():
    args = SimpleNamespace(dtype="bf16", layout="nn", epilogue="none", fresh=7, dtype_b=None,
                           dtype_out="fp32", scale_a="none", scale_b="none")
    problems = [GemmProblem.contiguous(64, 64, 64, dtype="fp32", layout=layout, precision=precision)
                for layout, precision in (("tt", "tf32"), ("nt", "fp16x3"), ("tt", "fp16x3"))]
    assert bench._notes(args, problems) == {
        "dtypes": "fp32", "layouts": "nt,tt", "precision": "fp16x3,tf32", "epilogues": "none",
        "dtype_out": "fp32", "fresh_seed": 7}
