"""How a float32 product is computed: the path of a config, its error bound, and the setting that
changes it."""

from __future__ import annotations

from dataclasses import dataclass

from tritongemm import settings
from tritongemm.compute import COMPUTES
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import spec_named
from tritongemm.problem import GemmProblem


@dataclass(frozen=True)
class Float32Path:
    """The path of a float32 product.

    Attributes:
        name: ``split``, ``ieee``, ``tf32`` or ``torch``.
        how: what multiplies and sums.
        bound: elementwise bound of |C - exact| / (|A| |B|), to first order; None for torch's
            kernels.
        exception: elements of C that the bound does not hold for, if there may be any.
        limit: the limits of the check in ``measure/numerics.py``, as multiples of sqrt(K) rms(a)
            rms(b): (maximum error, RMS error); None for torch's kernels.
        switch: how to get another path.
    """

    name: str
    how: str
    bound: float | None
    limit: tuple[float, float] | None
    switch: str
    exception: str = ""

    def fields(self) -> list[tuple[str, str]]:
        """(name, text) for ``explain``."""
        found = [("float32", f"{self.name}: {self.how}")]
        if self.bound is not None and self.limit is not None:
            found += [("error", f"each element of C is within {self.bound:.2g} of |A| |B|"),
                      *([("", f"but {self.exception}")] if self.exception else []),
                      ("", "checked: {:.2g} of sqrt(K) rms(a) rms(b) by maximum, {:.2g} by RMS, or "
                           "twice torch's".format(*self.limit))]
        return [*found, ("switch", self.switch)]


#: By the products of parts that stand for one of float32.
_SPLIT = {
    3: "three fp16 tensor-core products of operands split into two parts (fp16x3)",
    6: "six bf16 tensor-core products of operands split into three parts (bf16x6)",
}
_HOW = {
    "ieee": "float32 multiply-adds on CUDA cores",
    "tf32": "tensor cores, operands with 10 bits of mantissa",
    "torch": "cuBLAS, at torch's own precision setting",
}
#: What the rule by which the split pass flags rows allows a single part (device/split_fp32.py).
_LOSSES_OF_COPIES = ("numbers below 2^-28 of the largest in their row of A or column of B keep "
                     "fewer bits, at least three: it shows where C has no larger terms")
_TO_IEEE = "TRITONGEMM_FP32=ieee or tg.fp32_compute('ieee'): CUDA cores only"
_TO_TORCH = "TRITONGEMM_FP32=ieee or tg.fp32_compute('ieee'): torch's kernel"
_TO_SPLIT = "TRITONGEMM_FP32=split or tg.fp32_compute('split'): split products where faster"
_NO_TF32 = "torch.backends.cuda.matmul.fp32_precision = 'ieee': no TF32"
_NO_COPIES = "TRITONGEMM_FP32=ieee or tg.fp32_compute('ieee'): no scaled copies; "
_TO_OWN = "TRITONGEMM_POLICY=own or strict=True: kernels of this package only"


def default_precision(dtype: str) -> str:
    """The precision of a product with operands of ``dtype`` while torch's own setting is
    ``ieee``."""
    return "fp16x3" if dtype in ("fp32", "c64") and settings.current().fp32 == "split" else "ieee"


def float32_path(problem: GemmProblem, config: KernelConfig | None, device: DeviceSpec,
                 torchs: bool = False, of_complex: bool = False) -> Float32Path | None:
    """The path of ``config``, or torch's; None if the operands are not float32. ``of_complex``: the
    product stands for one of complex64, which the setting ``ieee`` gives to torch.

    A kernel that does not split operands runs a problem of precision ``fp16x3`` as ``ieee``.
    """
    if problem.dtype_a != "fp32":
        return None
    asked = problem.compute
    if config is None or torchs:
        by_setting = settings.current().fp32 == "ieee" and (
            of_complex or config is None and asked.name == "tf32")
        return Float32Path("torch", _HOW["torch"], None, None,
                           _TO_SPLIT if by_setting else _TO_OWN)
    spec = spec_named(config.kernel)
    footprint = spec.footprint(problem, config, device)
    products, exception = footprint.products, ""
    to_ieee = _TO_TORCH if of_complex else _TO_IEEE
    if asked.name == "fp16x3" and products > 1:
        name, switch = "split", to_ieee
    elif asked.name == "tf32" and footprint.tensor_cores:
        name, switch = "tf32", (_NO_COPIES if spec.guarded else "") + _NO_TF32
        exception = _LOSSES_OF_COPIES if spec.guarded else ""
    else:
        # The setting is ieee; or the split does not pay for its pass over the operands; or a kernel
        # of CUDA cores does what TF32 allows.
        name, switch = "ieee", {"ieee": _TO_SPLIT, "tf32": _NO_TF32}.get(asked.name, to_ieee)
    mode = asked if name != "ieee" else COMPUTES["ieee"]
    unit = asked.error_unit(problem.c.format.eps, problem.k)
    how = _HOW[name] if name != "split" else _SPLIT.get(
        products, f"{products} tensor-core products of parts of the operands")
    return Float32Path(name, how, mode.bound(problem.k),
                       (asked.max_factor * unit, asked.rms_factor * unit), switch, exception)
