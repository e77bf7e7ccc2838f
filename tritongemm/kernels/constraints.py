"""The legality rules that several kernels share, one predicate each. A rule of one kernel is in its
spec; the sweep, the selection and the tests ask for both.

A predicate takes (problem, config, device) and returns None where the rule holds, else the
sentence that says what is wrong, the limit and the way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tritongemm.config import KernelConfig
from tritongemm.device import INTERPRETER, DeviceSpec
from tritongemm.formats import format_of
from tritongemm.kernels import gluon_support
from tritongemm.kernels.reduce import partials_bytes
from tritongemm.problem import EPILOGUES, FULL_ALIGNMENT, GemmProblem

#: The rule against tiles that mostly compute padding: nothing is wrong with them but their time.
WASTE = "oversized"

#: Parameters that kernels without clusters, and kernels in Triton, do not have.
CLUSTERS = ("cluster_k", "cluster_m", "cluster_n")
CUDA_TILES = ("thread_m", "thread_n", "warp_m", "warp_n")

Check = Callable[[GemmProblem, KernelConfig, DeviceSpec], "str | None"]


@dataclass(frozen=True)
class Constraint:
    """A named rule. ``of_problem`` rules do not look at the config: they say what is supported."""

    rule: str
    check: Check
    of_problem: bool = False


@dataclass(frozen=True)
class Violation:
    """The first rule that a config breaks, and why."""

    rule: str
    message: str


def _is_power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def min_arch(arch: int) -> Constraint:
    """The device must be at least sm_``arch``."""
    def check(problem, config, device):
        if device.arch >= arch:
            return None
        return f"needs sm_{arch} or later; {device.name} is {device.sm}"
    return Constraint("arch", check, of_problem=True)


def archs(*allowed: int) -> Constraint:
    """The device must be one of ``allowed``."""
    def check(problem, config, device):
        if device.arch in allowed:
            return None
        return f"runs on {', '.join(f'sm_{a}' for a in allowed)}; {device.name} is {device.sm}"
    return Constraint("arch", check, of_problem=True)


def _not_interpreted(problem, config, device):
    return "Gluon kernels have no interpreter" if device.slug == INTERPRETER else None


not_interpreted = Constraint("interpreter", _not_interpreted, of_problem=True)


def _gluon(problem, config, device):
    reason = gluon_support.obstacle()
    return None if reason is None else f"Gluon kernels are off: {reason}"


gluon = Constraint("gluon", _gluon, of_problem=True)


def _no_epilogue(problem, config, device):
    if problem.epilogue == "none":
        return None
    return f"has no epilogue {problem.epilogue!r}"


no_epilogue = Constraint("epilogue", _no_epilogue, of_problem=True)


def _whole_epilogue(problem, config, device):
    """The pass that adds the parts of a split K has the plain epilogues only."""
    if config.split_k == 1 or EPILOGUES[problem.epilogue].plain:
        return None
    return (f"split_k={config.split_k} with the epilogue {problem.epilogue!r}, which the pass that "
            "adds the parts does not have. Use split_k=1")


whole_epilogue = Constraint("epilogue", _whole_epilogue)


def _tf32_reads_k_major(problem, config, device):
    """The Hopper tensor instruction for tf32 reads both operands K-major."""
    if problem.precision != "tf32" or problem.layout == "nt":
        return None
    return "tf32 is nt only: the tensor instruction reads K-major from shared memory"


tf32_reads_k_major = Constraint("tf32_layout", _tf32_reads_k_major, of_problem=True)


def on_cuda_cores(problem: GemmProblem) -> bool:
    """Whether a kernel that multiplies by ``tl.dot`` runs on CUDA cores: fp32 at ``ieee``, or at
    ``fp16x3``, which such a kernel serves as if it were ``ieee``."""
    return not problem.a.format.mma_kind and problem.compute.input_precision == "ieee"


def _tma_operands(problem, config, device):
    """TMA needs 16-byte aligned bases and outer strides."""
    for operand in ("a", "b"):
        bytes_ = getattr(problem, f"align_{operand}")
        if bytes_ < FULL_ALIGNMENT:
            return (f"operand {operand.upper()} is aligned to {bytes_} bytes; TMA "
                    f"needs {FULL_ALIGNMENT}")
    return None


tma_operands = Constraint("alignment", _tma_operands, of_problem=True)


def _tma_extents(problem, config, device):
    """A tensor map cannot describe an empty extent."""
    if min(problem.m, problem.n, problem.k, problem.batch) == 0:
        return "an empty extent cannot be described to TMA"
    return None


tma_extents = Constraint("empty", _tma_extents, of_problem=True)


def _not_batched(problem, config, device):
    return None if problem.batch == 1 else f"takes one matrix, not a batch of {problem.batch}"


not_batched = Constraint("batch", _not_batched, of_problem=True)


def _powers_of_two(problem, config, device):
    for name in ("block_m", "block_n", "block_k", "num_warps", "epilogue_subtile"):
        value = getattr(config, name)
        if not _is_power_of_two(value):
            return f"{name}={value} is not a power of two, which Triton's tiles must be"
    return None


powers_of_two = Constraint("power_of_two", _powers_of_two)


def _flags(*of_three: str) -> Constraint:
    """Parameters of two values, 0 and 1, or, those named, of three."""
    def check(problem, config, device):
        for name in ("pingpong", "swap_ab", "pad_operands", "dependent_launch"):
            value = getattr(config, name)
            if name in of_three and value > 2:
                return f"{name}={value} is not 0, 1 or 2"
            if name not in of_three and value > 1:
                return f"{name}={value} is neither 0 nor 1"
        return None
    return Constraint("flags", check)


flags = _flags("pad_operands", "dependent_launch")
#: Of the kernel that can turn the transposed product's tiles.
flags_and_turned = _flags("pad_operands", "dependent_launch", "swap_ab")


def unused(*names: str) -> Constraint:
    """Parameters that the kernel does not have must stay at their defaults."""
    defaults = {f: KernelConfig.__dataclass_fields__[f].default for f in names}

    def check(problem, config, device):
        for name, default in defaults.items():
            if getattr(config, name) != default:
                return f"{name}={getattr(config, name)}: this kernel has no such parameter"
        return None
    return Constraint("unused", check)


def _dot_shape(problem, config, device):
    """``tl.dot`` takes 16 along every side, and 32 bytes along K."""
    least_k = 32 * 8 // min(problem.a.format.bits, problem.b.format.bits)
    for name, least in (("block_m", 16), ("block_n", 16), ("block_k", max(16, least_k))):
        value = getattr(config, name)
        if value < least:
            return f"{name}={value} is below {least}, the smallest tile of tl.dot"
    return None


dot_shape = Constraint("dot_shape", _dot_shape)


def _accumulator(problem, config, device):
    """The float32 accumulator and the operands in flight must fit the registers of the warps.

    A thread has at most 255 registers; above 128 of accumulator ptxas has spilled (128x256 on
    4 warps on sm_90). Fewer than 2 a thread leave most lanes without work.
    """
    per_thread = config.block_m * config.block_n / (config.num_warps * 32)
    if per_thread > 128:
        return (f"{config.block_m}x{config.block_n} on {config.num_warps} warps is "
                f"{per_thread:.0f} accumulator registers a thread; at most 128. Use more warps "
                "or a smaller tile")
    if per_thread < 2:
        return (f"{config.block_m}x{config.block_n} on {config.num_warps} warps leaves "
                f"{per_thread:.2g} results a thread; at least 2. Use fewer warps")
    return None


accumulator = Constraint("registers", _accumulator)


def _fma_tile(problem, config, device):
    """On CUDA cores larger tiles unroll into code that compiles for minutes."""
    if not on_cuda_cores(problem):
        return None
    per_thread = config.block_m * config.block_n // (config.num_warps * 32)
    work = per_thread * config.block_k
    if per_thread > 64 or work > 4096:
        return (f"{config.block_m}x{config.block_n}x{config.block_k} on {config.num_warps} warps "
                f"unrolls {work} multiply-adds of {per_thread} results a thread; at most 4096 "
                "and 64 for fp32 ieee")
    return None


fma_tile = Constraint("fma_tile", _fma_tile)


def _units(problem, config):
    """Tiles of C and of its batch, times the parts of K."""
    m, n = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    return -(-m // config.block_m) * -(-n // config.block_n) * problem.batch * config.split_k


def _split_k(problem, config, device):
    if config.split_k == 1:
        return None
    steps = -(-problem.k // config.block_k)
    if config.split_k > steps:
        return (f"split_k={config.split_k} cuts {steps} steps of block_k={config.block_k}; at "
                "most one part a step")
    units = _units(problem, config)
    if config.split_k > 16 and units > 4 * device.num_sms:
        return (f"split_k={config.split_k} makes {units} units for {device.num_sms} SMs; at most "
                "four an SM. Use a smaller split")
    partials = partials_bytes(problem, config.split_k)
    if partials > MAX_SCRATCH_BYTES:
        return (f"split_k={config.split_k} needs {partials} bytes of "
                f"{format_of(problem.compute.accumulator).torch_name} partials; at most "
                f"{MAX_SCRATCH_BYTES}. Use a smaller split")
    return None


split_k = Constraint("split_k", _split_k)


def _split_of_one_stride(problem, config, device):
    """The pass that adds the parts writes C with one stride along the batch."""
    if config.split_k == 1 or "c" not in problem.two_strides:
        return None
    return (f"split_k={config.split_k} adds its parts into a C with one stride along the batch; "
            f"two_strides is {problem.two_strides}. Use split_k=1")


split_of_one_stride = Constraint("batch_strides", _split_of_one_stride)
#: Bound of the scratch a launch may take from torch's allocator.
MAX_SCRATCH_BYTES = 2**30


def _grid(problem, config, device):
    tiles = _units(problem, config) * config.cluster_k
    if tiles > 2**31 - 1:
        return f"{tiles} tiles; a grid has at most {2**31 - 1} programs. Use a larger tile"
    # Device code rounds extents up to whole tiles of a cluster, and counts rows and columns of the
    # last one.
    widest = max(config.block_m * config.cluster_m, config.block_n * config.cluster_n,
                 config.block_k)
    for name in ("m", "n", "k"):
        if getattr(problem, name) > 2**31 - widest:
            return (f"{name}={getattr(problem, name)} and a tile's side of {widest} are more than "
                    f"{2**31}, where 32 bits end. Cut the problem along {name}")
    return None


grid = Constraint("grid", _grid)


def _not_oversized(problem, config, device):
    """A tile of at least four times an extent, beyond the smallest one, mostly computes padding."""
    for name, extent in (("block_m", problem.m), ("block_n", problem.n), ("block_k", problem.k)):
        value = getattr(config, name)
        least = 32 if name == "block_k" else 16
        if value > least and value >= 4 * max(extent, 1):
            return f"{name}={value} is at least four times the extent {extent}"
    return None


not_oversized = Constraint(WASTE, _not_oversized)


def shared_memory(shared_bytes: Callable[[GemmProblem, KernelConfig], int]) -> Constraint:
    """The kernel's shared memory must fit the device's limit a block."""
    def check(problem, config, device):
        need = shared_bytes(problem, config)
        if need <= device.shared_bytes_per_block:
            return None
        way = ("Use fewer stages" if config.num_stages > 1 else "Use a smaller tile")
        if config.epilogue_subtile == config.cluster_k == 1:
            way += " or epilogue_subtile=2"
        return (f"block_m={config.block_m}, block_n={config.block_n}, block_k={config.block_k}, "
                f"num_stages={config.num_stages} needs {need} bytes of shared memory; "
                f"{device.sm} allows {device.shared_bytes_per_block}. {way}")
    return Constraint("shared_memory", check)
