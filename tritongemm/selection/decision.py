"""Who runs a product: this package's kernel, or torch's (:func:`torch_wins`).

Known of torch is what sweeps measured beside the configs, for the problem itself, its twin or
neighbouring problems, and a lower bound of float32 products from the device's peak rates.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tritongemm import settings
from tritongemm.device import INTERPRETER, DeviceSpec
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.complex_product import arranging_us, float32_problem
from tritongemm.problem import EPILOGUES, GemmProblem
from tritongemm.selection.hosttime import HostPath, Side
from tritongemm.selection.model import estimate, model_for, not_calibrated
from tritongemm.selection.policy import Choice, choose
from tritongemm.selection.sibling import with_rows_for

#: Torch's kernel runs where its time is below this share of ours and the policy allows it. Closer
#: to 1 an estimate is wrong as often as right (leave-one-out, 200 problems on an H200).
TORCH_WINS = 0.97
#: cuBLAS reaches at most this share of the peak rate of float32 and of TF32 (52 of 67 and 395 of
#: 494 TFLOP/s at 4096 cubed on an H100).
_TORCH_SHARE = 0.8
#: The largest bandwidth of a GPU of sm_90 (H200, GH200 144GB), for one whose own is not known;
#: other architectures have no rows of a sibling.
_MOST_GBPS = 4900.0
#: Least ratio of torch's time to ours at which a float32 product runs here, by source: measured for
#: the problem itself, for it on a sibling, or a lower bound from neighbouring problems. Each of
#: 1,263 measured problems left out (an H100; perf/float32_evidence.py): of 994 whose bound is above
#: this 17 are below 0.97 of torch's speed; 84 that are at least 1.1 times as fast go to torch. Of
#: products that arithmetic limits and whose row is of an H100, 201 at fp16x3 and 122 under TF32 are
#: above this there (configs/tuned); on an H200 the slowest of them are 1.012 and 0.992 times as
#: fast (perf/results/nvidia-h200/fp32.csv).
_FLOAT32_LEAST = {"exact": 1.0, "sibling": 1.03, "model": 1.03}
#: Activations whose derivative as a factor of a 16-bit product takes longer in the product than in
#: torch's pointwise kernel after it, and the K below which. Seven products of training and of 128
#: rows on an H200, torch's time / ours: with K = 768 gelu 0.919, silu 0.946, gelu_tanh 0.723; with
#: K from 3,072 on gelu 0.961 to 1.096, mean 1.023; silu 0.973 to 1.099, 1.015; gelu_tanh 0.906 to
#: 1.076, 0.970 (perf/results/nvidia-h200/epilogues/factors.csv). An element takes 9 to 19
#: instructions, relu's one. The least of these products takes 35 us; smaller ones were not measured
#: and stay.
_SLOW_DERIVATIVES = {"gelu": 2048.0, "silu": 2048.0, "gelu_tanh": math.inf}
_SLOW_DERIVATIVES_FROM_US = 30.0
#: The same of a complex product estimated from float32 ones, which are not the same to torch. On an
#: H100 squares of 256 are at 0.92 of torch's speed, of 384 at 1.15, of 512 at 1.53; the bounds are
#: 1.02, 1.18 and 1.39, and that of 64, which was not measured, is 1.20.
_COMPLEX_LEAST = 1.25


def torch_wins(problem: GemmProblem, choice: Choice, device: DeviceSpec,
               path: HostPath) -> str | None:
    """Why torch's kernel should run ``problem`` instead of ``choice``; None if ours should.

    Compares the two :class:`Side` of a call on ``path``: torch's must be shorter than
    :data:`TORCH_WINS` of ours, which is the uncertainty of an estimated ratio. For a product that
    the host limits on both sides, the cheaper host path decides.

    Only under the policy ``auto``. 16-bit products go to torch where torch's GPU time was measured
    to be less, for this problem, its twin or neighbouring problems; where it is unknown it counts
    as ours. Where no calibration serves the device and no row is near, they go to torch: the rule's
    default may take several times as long. Float32 and TF32 products go to torch unless a
    measurement shows that ours is at least as fast on the GPU, and where its launches cost the host
    more than that saves; of complex64 only the GPU counts. For a batch with two strides torch
    copies operands first, which counts.
    A factor that is a slow derivative (:data:`_SLOW_DERIVATIVES`) goes to torch too, unless the
    problem itself was measured.
    Never under a budget of SMs or batch invariance, which torch does not support.
    """
    current = settings.current()
    if current.policy != "auto" or current.batch_invariant or current.num_sms is not None:
        return None
    if device.slug != INTERPRETER:
        if (reason := _torch_wins_by_derivative(problem, choice, device)) is not None:
            return reason
        if problem.a.format.real:
            return _torch_wins_complex(problem, choice, device)
        if problem.dtype_a == "fp32":
            return (_torch_wins_float32(problem, choice, device)
                    or _torch_wins_by_time(problem, choice, device, path))
        if choice.source == "rule" and model_for(problem, device).section is None:
            return (f"{not_calibrated(problem, choice.config, device)}, so nothing tells how fast "
                    "ours is; tritongemm calibrate --quick measures that")
    if problem.two_strides != "none":
        return _torch_wins_with_copies(problem, choice, device, path)
    measured = choice.vs_torch is not None and choice.vs_torch < TORCH_WINS
    most = 2 + (choice.config.split_k > 1)  # launches: the last one would be copies of operands
    if device.slug == INTERPRETER or not measured and (
            TORCH_WINS * path.ours_us(most) <= path.torch_us):
        return None
    by_time = _torch_wins_by_time(problem, choice, device, path)
    if by_time is None or not measured:
        return by_time
    where = {"exact": "here", "twin": "in the other 16-bit type"}.get(
        choice.source, "at measured problems near by")
    return f"torch's kernel takes {choice.vs_torch:.2f} of the time of ours {where}"


def sides(problem: GemmProblem, choice: Choice, device: DeviceSpec,
          path: HostPath) -> tuple[Side, Side]:
    """(torch's, ours): the predicted times of a call. Where nothing is known of torch's GPU time,
    it is as long as ours."""
    ours_us = _our_us(problem, choice, device)
    ratio = choice.vs_torch
    if problem.dtype_a == "fp32":
        ratio = choice.evidence if choice.expected is None else choice.expected
    launches = launches_of(problem, choice.config, device)
    return (Side(path.torch_us, ours_us * (1.0 if ratio is None else ratio)),
            Side(path.ours_us(len(launches)), ours_us))


def _our_us(problem: GemmProblem, choice: Choice, device: DeviceSpec) -> float:
    """The GPU time of a choice: measured, or predicted."""
    if choice.time_us is not None:
        return choice.time_us
    return estimate(problem, choice.config, device).total_us


def _torch_wins_by_derivative(problem: GemmProblem, choice: Choice,
                              device: DeviceSpec) -> str | None:
    """The reason where a derivative would slow the product down by more than torch's own pass over
    the result takes. Of 16-bit products on sm_90 that no row decides."""
    gradient_of = EPILOGUES[problem.epilogue].gradient_of
    if (problem.k >= _SLOW_DERIVATIVES.get(gradient_of, 0.0) or problem.a.format.bits != 16
            or device.arch != 90 or choice.vs_torch is not None):
        return None
    if _our_us(problem, choice, device) < _SLOW_DERIVATIVES_FROM_US:
        return None
    return (f"the derivative of {gradient_of} takes longer in the product than in a kernel of its "
            "own")


def _torch_wins_by_time(problem: GemmProblem, choice: Choice, device: DeviceSpec,
                        path: HostPath) -> str | None:
    """The reason where torch's side of a call is the shorter."""
    torchs, ours = sides(problem, choice, device, path)
    if torchs.time_us >= TORCH_WINS * ours.time_us:
        return None
    return f"torch's call is expected to take {torchs}, ours {ours}"


def _torch_wins_with_copies(problem: GemmProblem, choice: Choice, device: DeviceSpec,
                            path: HostPath) -> str | None:
    """The same for a batch with two strides. Torch writes a copy of each operand that has them and
    multiplies the copies: that takes at least the bytes of the copies over the device's bandwidth,
    and the time of our best config for one stride, by the measured ratio where there is one.

    So torch wins only where two strides rule out the fast kernels, as for operands that TMA cannot
    read, and K is long. Where a time is not known the call stays here.
    """
    one_stride = choose(replace(problem, two_strides="none"), device)
    if choice.time_us is None or one_stride.time_us is None:
        return None
    copied = sum(x.format.bytes_of(problem.batch * rows * problem.k) for name, x, rows in (
        ("a", problem.a, problem.m), ("b", problem.b, problem.n)) if name in problem.two_strides)
    torch_us = one_stride.time_us * (one_stride.vs_torch or 1.0) + (
        copied / (1e3 * device.memory_gbps) if device.memory_gbps else 0.0)
    if max(torch_us, path.torch_us) >= TORCH_WINS * choice.time_us:
        return None
    return (f"a copy of the operands and torch's kernel take {torch_us:.1f} us, the kernel for two "
            f"strides along the batch {choice.time_us:.1f} us")


def _torch_floors_us(problem: GemmProblem, device: DeviceSpec) -> tuple[float, float]:
    """Lower bounds of the time of torch's product of float32 operands by arithmetic and by memory,
    microseconds; 0 where the device's peak rates are unknown."""
    peak = device.peak_tflops.get("tf32" if problem.precision == "tf32" else "fp32")
    if not peak or not device.memory_gbps:
        return 0.0, 0.0
    return (problem.flops() / (1e6 * _TORCH_SHARE * peak),
            problem.bytes() / (1e3 * device.memory_gbps))


def _torch_wins_float32(problem: GemmProblem, choice: Choice, device: DeviceSpec,
                        least_here: float = _FLOAT32_LEAST["model"]) -> str | None:
    """:func:`torch_wins` for float32 operands: torch runs them unless a measurement favours our
    kernel.

    The IEEE kernels are 0.85 to 1.6 times as fast as torch's, depending on layout and size, so for
    precision ``ieee`` only a row of the same problem on this device counts. Split products win by
    more: a sibling's row or an estimate from neighbouring problems suffices, with a margin, which
    for a sibling's row of a product that memory limits grows by the ratio of the two devices'
    bandwidths. An estimate from another device's measurements counts only where the time that is
    predicted for ours is below torch's lower bound, one from the device's own from ``least_here``
    on too. This is of GPU time alone.
    """
    kind = "TF32" if problem.precision == "tf32" else "float32"
    if problem.precision != "ieee" and choice.source in ("model", "sibling"):
        decide = _torch_wins_estimated if choice.source == "model" else _torch_wins_by_a_sibling
        return decide(problem, choice, device, kind, least_here)
    if choice.source != "exact" or choice.evidence is None:
        return _nothing_measured(kind)
    if choice.evidence >= _FLOAT32_LEAST["exact"]:
        return None
    return f"torch's {kind} kernel takes {choice.evidence:.2f} of the time of ours here"


def _torch_wins_by_a_sibling(problem: GemmProblem, choice: Choice, device: DeviceSpec, kind: str,
                             least_here: float) -> str | None:
    """:func:`_torch_wins_float32` where a sibling's row chose: by the row's ratio, or by what was
    measured near by on the device itself. Either suffices."""
    least = _FLOAT32_LEAST["sibling"]
    compute_us, memory_us = _torch_floors_us(problem, device)
    if memory_us >= compute_us:  # or neither is known
        sibling = with_rows_for(device, problem.unit)
        if sibling is not None and sibling.memory_gbps:  # torch's gain from faster memory
            least *= max(1.0, (device.memory_gbps or _MOST_GBPS) / sibling.memory_gbps)
    if choice.evidence is not None and choice.evidence >= least_here or (
            choice.of_sibling is not None and choice.of_sibling >= least):
        return None
    reasons = []
    if choice.of_sibling is not None:
        reasons.append(f"takes {choice.of_sibling:.2f} of the time of ours on another GPU of this "
                       f"architecture; {least:.2f} is asked for")
    if choice.evidence is not None:
        reasons.append(_may_take(choice.evidence, least_here, choice.own))
    return f"torch's {kind} kernel " + "; it ".join(reasons) if reasons else _nothing_measured(kind)


def _torch_wins_estimated(problem: GemmProblem, choice: Choice, device: DeviceSpec, kind: str,
                          least_here: float) -> str | None:
    """:func:`_torch_wins_float32` where the model chose: by either of the two lower bounds."""
    least, floor_us = _FLOAT32_LEAST["model"], max(_torch_floors_us(problem, device))
    below = choice.predicted_us is None or choice.predicted_us <= floor_us
    if below:
        least_here = least
    if choice.evidence is not None and choice.evidence >= least_here or (
            below and choice.of_sibling is not None and choice.of_sibling >= least):
        return None
    if choice.evidence is None:
        if choice.of_sibling is None:
            return _nothing_measured(kind)
        if not below:
            return (f"the {kind} kernel chosen here is predicted to take "
                    f"{choice.predicted_us:.1f} us, torch's no less than {floor_us:.1f} us")
    bound = max(x for x in (choice.evidence, choice.of_sibling if below else None) if x is not None)
    return f"torch's {kind} kernel {_may_take(bound, least_here, choice.own)}"


def _may_take(bound: float, least: float, own: bool) -> str:
    if own:
        return (f"takes {bound:.2f} of the time of ours, as measured here for this product; "
                f"{least} is asked for")
    return (f"may take only {bound:.2f} of the time of ours, as far as measured problems near by "
            f"tell; {least} is asked for")


def _nothing_measured(kind: str) -> str:
    return f"no measurement shows that the {kind} kernel chosen here is as fast as torch's"


def _torch_wins_complex(problem: GemmProblem, choice: Choice, device: DeviceSpec) -> str | None:
    """The same for complex operands: what was measured of the float32 product, with the time of
    arranging the operands added to ours. At precision ``ieee`` torch's, whose kernel arranges
    nothing."""
    if problem.precision == "ieee":
        return "complex64 at precision ieee is torch's"
    if choice.time_us is not None:
        total_us = choice.time_us + arranging_us(problem, device)
        evidence, of_sibling = (x and x * choice.time_us / total_us
                                for x in (choice.evidence, choice.of_sibling))
        choice = replace(choice, predicted_us=total_us, evidence=evidence, of_sibling=of_sibling)
    return _torch_wins_float32(float32_problem(problem), choice, device, _COMPLEX_LEAST)
