"""What kernels launched when the tuned tables were measured, as ``kept.json`` holds it.

``PYTHONPATH=. python tests/kernels/kept.py`` writes the file anew: after a change that is meant to
alter rules, defaults or launches, review its diff. Tables measured before may need a sweep then.
"""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.kernels import SPECS
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.kernels.launch import Launch, Scalar
from tritongemm.problem import GemmProblem
from tritongemm.records.spaces import load_space

FILE = Path(__file__).with_name("kept.json")
ALL = {**SPECS, **RUNG_SPECS}
DEVICE = representative(90)
#: Of each kernel's space, and launched of each problem.
CONFIGS, LAUNCHED = 120, 3
PROBLEMS = [
    ((256, 512, 1024), {"layout": "nt"}),
    ((1000, 760, 200), {"layout": "nn", "epilogue": "bias"}),
    ((300, 200, 100), {"layout": "tn", "dtype": "fp16", "batch": 3, "epilogue": "add"}),
    ((8192, 8192, 512), {"layout": "tt", "dtype_out": "fp32"}),
    ((5, 4096, 4096), {"layout": "nt", "epilogue": "relu"}),
    ((4096, 1, 1032), {"layout": "nt", "dtype": "fp16", "epilogue": "scale"}),
    ((33, 77, 129), {"layout": "nn"}), ((640, 512, 8), {"layout": "nt"}),
    ((640, 512, 20), {"layout": "nt"}),
    ((11400, 11400, 4001), {"layout": "nn"}),
    ((512, 256, 320), {"dtype": "fp32", "precision": "tf32", "layout": "nn"}),
    ((1024, 768, 512), {"dtype": "fp32", "precision": "fp16x3", "layout": "nt"}),
    ((130, 70, 50), {"dtype": "fp32", "precision": "fp16x3", "layout": "tn", "batch": 2}),
    ((256, 512, 1024), {"layout": "nn", "align": 4}), ((3, 2048, 1001), {"layout": "nt"}),
    ((128, 256, 512), {"dtype": "fp32", "precision": "fp16x3", "layout": "nn", "align": 4}),
]
#: Of the ladder's kernels, which are not tuned for calls: these problems alone.
OF_RUNGS = slice(3)


def problems(kernel: str) -> list[GemmProblem]:
    """The problems of the file for a kernel, stored without gaps; ``align``: of A's and B's
    addresses."""
    return [_problem(*sizes, **more) for sizes, more in
            PROBLEMS[slice(None) if kernel in SPECS else OF_RUNGS]]


def _problem(*sizes: int, align: int | None = None, **more: object) -> GemmProblem:
    problem = GemmProblem.contiguous(*sizes, **more)
    return problem if align is None else replace(problem, align_a=align, align_b=align)


def of_launch(launch: Launch) -> str:
    """A launch in one line: everything but its module."""
    arguments = " ".join(_argument(x) for x in launch.arguments)
    constants = " ".join(f"{name}={value}" for name, value in launch.all_constants()
                         if name != "SYMBOL")
    rest = " ".join(f"{f.name}={getattr(launch, f.name)}" for f in fields(launch)
                    if f.name not in ("module", "arguments", "constants"))
    return f"{rest} | {arguments} | {constants}"


def _argument(x: object) -> str:
    if isinstance(x, Scalar):
        return f"{x.name}={x.value}%{x.divisor}{'=' if x.folded else ''}{x.type}"
    return f"{x.name}({','.join(str(getattr(x, f.name)) for f in fields(x)[1:])})"


def of_problem(kernel: str, problem: GemmProblem, configs: list[KernelConfig]) -> dict:
    """The rule default, which configs break which rule first and what it says of the first of
    them, and what a few legal ones launch and occupy."""
    spec, few = ALL[kernel], LAUNCHED if kernel in SPECS else 1
    if (refused := spec.takes.violation(problem)) is not None:
        return {"refused": [refused.rule, refused.message]}
    rules: dict[str, list[int]] = {}
    says: dict[str, str] = {}
    legal = []
    for number, config in enumerate(configs):
        if (broken := spec.violation(problem, config, DEVICE)) is None:
            legal.append(config)
        else:
            rules.setdefault(broken.rule, []).append(number)
            says.setdefault(broken.rule, broken.message)
    return {"archs": list(spec.archs), "default": spec.default(problem, DEVICE).config_id,
            "rules": rules, "says": says,
            "launched": {config.config_id: [
                *(of_launch(x) for x in launches_of(problem, config, DEVICE)),
                str(spec.footprint(problem, config, DEVICE)),
                spec.shared_bytes(problem, config)]
                for config in legal[::max(1, len(legal) // few)][:few]}}


def drawn(kernel: str) -> list[KernelConfig]:
    """Configs of a kernel's space; of the ladder's kernels, which have none, those around the
    defaults."""
    if kernel in SPECS:
        every = list(load_space(kernel).configs())
        return random.Random(kernel).sample(every, min(CONFIGS, len(every)))
    defaults = dict.fromkeys(ALL[kernel].default(problem, DEVICE) for problem in problems(kernel))
    return [config for one in defaults for config in (one, *(
        replace(one, **{name: getattr(one, name) * 2}) for name in (
            "block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "split_k")))]


def main() -> None:
    """Writes the file."""
    lines = []
    for kernel in ALL:
        configs = drawn(kernel)
        found = ",\n".join(f"  {json.dumps(str(p))}: {json.dumps(of_problem(kernel, p, configs))}"
                           for p in problems(kernel))
        made = json.dumps([config.to_json() for config in configs])
        lines.append(f' {json.dumps(kernel)}: {{\n  "configs": {made},\n{found}}}')
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
