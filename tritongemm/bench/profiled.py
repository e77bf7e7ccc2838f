"""The process that ``ncu`` profiles: one call of one kernel between the profiler's start and stop.

    python -m tritongemm.bench.profiled PROBLEM_AS_JSON KERNEL
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tritongemm.bench import providers, target
from tritongemm.bench.providers import Prepared
from tritongemm.errors import TritonGemmError, UsageError
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_from_json


def known(kernel: str) -> None:
    """Raises :class:`UsageError` for what :func:`prepare` cannot run."""
    if kernel not in SPECS:
        try:
            providers.load(kernel)
        except UsageError as error:
            if "+" in kernel:
                raise
            raise UsageError(f"kernel {kernel!r} is not known; use one of "
                             f"{', '.join((*SPECS, *providers.PROVIDERS))}, or a CUDA or Triton "
                             "rung (`tritongemm ladder --list`)") from error


def prepare(problem: GemmProblem, kernel: str, where: target.Target) -> Prepared:
    """The kernel by name: the tuned or default config of a kernel, a rung, or a provider."""
    if kernel not in SPECS:
        return providers.load(kernel).prepare(problem, where)
    from tritongemm import selection
    from tritongemm.measure.contender import Contender
    from tritongemm.ops.plan import bind_config

    choice = selection.choose(problem, where.spec)
    config = (choice.config if choice.config.kernel == kernel else
              SPECS[kernel].default(problem, where.spec))
    bound = bind_config(problem, config, where.spec)
    return Prepared(Contender(kernel, lambda o: lambda: bound(*o.arguments, **o.others)), {})


def main(argv: Sequence[str]) -> int:
    """Runs it; 1 with the reason on stderr where it cannot."""
    try:
        problem = problem_from_json(json.loads(argv[0]))
        where = target.resolve("cuda", "hardware counters need a GPU")
        import torch

        from tritongemm.measure.operands import draw
        from tritongemm.measure.torch_baseline import fp32_precision

        with fp32_precision(problem.compute.input_precision):
            contender = prepare(problem, argv[1], where).contender
            operands = draw(problem, sets=1, seed=0, device=torch.device(where.torch_device))[0]
            call = contender.bind(operands)
            with contender.context():
                call()  # compiles, loads and raises the clock
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                call()
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
    except TritonGemmError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
