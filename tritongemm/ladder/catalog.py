"""The ladder: every rung in teaching order, with its source, idea, lesson, limits and figures.

One ordered list. What a rung is as code is elsewhere: CUDA rungs in
``tritongemm.baselines.cuda.rungs`` and the ``.cu`` files, host rungs in
``tritongemm.baselines.host``, Triton rungs in ``tritongemm.kernels.ladder``; a rung's name is the
key there too.

Sources of the rungs and of the figures:

S0  "GEMM operator optimisation", blog, 2023-10 (in Chinese)
S1  "CUDA SGEMM, optimisation tricks 5 to 8", notes on a video series by HKL, after
    tpoisonooo/how-to-optimize-gemm (in Chinese)
S2  "Implementation and optimisation of CUDA matrix multiplication", after enigmahuang.me
    "SGEMM on Pascal" (in Chinese)
S3  "Advanced Machine Learning Systems: GEMM", Yikai, 2023-11-08, after
    siboehm.com/articles/22/CUDA-MMM (in Chinese)
S4  "Vectorised memory access", tutorial chapter, after S3's original and
    wangzyon/NVIDIA_SGEMM_PRACTICE (in Chinese)
"""

from __future__ import annotations

from dataclasses import dataclass

from tritongemm.baselines.cuda.rungs import CUDA_RUNGS
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import UsageError
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.problem import GemmProblem

HOST, CUDA, TRITON = "host", "cuda", "triton"


@dataclass(frozen=True)
class Figure:
    """What a source measured, on its own hardware.

    Attributes:
        source: ``S1`` to ``S4``, or a public repository's name.
        hardware: where.
        m, n, k: the problem.
        value, unit: ``us``, ``ms``, ``TFLOPS``, ``% of cuBLAS``, ``memory throughput %`` or
            ``DRAM throughput %`` (the last two as Nsight Compute reports them).
        note: what differs from the other figures of the source.
    """

    source: str
    hardware: str
    m: int
    n: int
    k: int
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Attributes:
        name: also the key of its code.
        kind: ``host``, ``cuda`` or ``triton``.
        sources: the texts that describe it.
        idea: what the kernel does, in a sentence.
        lesson: what it shows; what the next one mends.
        limits: what it cannot run; "" if any M, N, K.
        figures: what the sources measured.
    """

    name: str
    kind: str
    sources: tuple[str, ...]
    idea: str
    lesson: str
    limits: str = ""
    figures: tuple[Figure, ...] = ()

    @property
    def variants(self) -> tuple[KernelConfig, ...]:
        """Its shipped parameters, the default first; none for a host rung. A Triton rung's are
        those for a 4096 cube in bf16 on Hopper."""
        if self.kind == TRITON:
            return (RUNG_SPECS[self.name].default(GemmProblem.contiguous(4096, 4096, 4096),
                                                  representative(90)),)
        return CUDA_RUNGS[self.name].variants if self.kind == CUDA else ()

    @property
    def parameters(self) -> str:
        """The default variant as text, e.g. ``BM=128 BN=128 BK=8 TM=8 TN=8 (256 threads)``."""
        if self.kind == TRITON:
            c, = self.variants
            split = f" SPLIT_K={c.split_k}" if c.split_k > 1 else ""
            return (f"BLOCK_M={c.block_m} BLOCK_N={c.block_n} BLOCK_K={c.block_k} "
                    f"GROUP_M={c.group_m}{split} num_warps={c.num_warps} "
                    f"num_stages={c.num_stages} (bf16)")
        if self.kind != CUDA:
            return ""
        code = CUDA_RUNGS[self.name]
        hidden = {"ALIGNED"}
        return "; ".join(
            " ".join(f"{k}={v}" for k, v in code.macros(c).items() if k not in hidden)
            + f" ({code.threads(c)} threads)" for c in code.variants)


#: S1's hardware is not stated in the text; a Nsight Compute profile of one launch.
_S1_AT = ("S1", "not stated", 512)
_S2_AT = ("S2", "TITAN X (Pascal), 11 TFLOPS", 8176)
_S3_AT = ("S3", "A100", 4096)
_S4_AT = ("S4", "GTX 1080 Ti")
_A6000_AT = ("SGEMM_CUDA", "RTX A6000", 4096)
_H200_AT = ("SGEMM_CUDA", "H200 (cuBLAS 50.9 TFLOPS)", 4096)


def _at(where: tuple[str, str, int], value: float, unit: str, note: str = "") -> Figure:
    source, hardware, size = where
    return Figure(source, hardware, size, size, size, value, unit, note)


def _s1(us: float, memory: float, dram: float, size: int = 512) -> tuple[Figure, ...]:
    where = (*_S1_AT[:2], size)
    note = "" if size == 512 else "the source ran it at 256: the strips must fit"
    return (_at(where, us, "us", note), _at(where, memory, "memory throughput %", note),
            _at(where, dram, "DRAM throughput %", note))


def _s4(*us: float) -> tuple[Figure, ...]:
    return tuple(_at((*_S4_AT, size), value, "us")
                 for size, value in zip((256, 512, 1024, 2048), us))


def _public(a6000: float, h200: float) -> tuple[Figure, ...]:
    return (_at(_A6000_AT, a6000, "% of cuBLAS"), _at(_H200_AT, h200, "TFLOPS"))


_HOST = (
    Rung("cpu_naive", HOST, ("S0",), "Loops in the order i, j, k; B is walked down its columns.",
         "Every step down a column fetches a new cache line and uses 4 of its 64 bytes."),
    Rung("cpu_reordered", HOST, ("S0",),
         "Loops in the order i, k, j; B and C are walked along their rows.",
         "The same operations in another order use whole lines and become vectors."),
    Rung("cpu_tiled", HOST, ("S0",), "Cache blocking of i, k and j.",
         "A block of B that stays in the cache is used by many rows of A."),
    Rung("cpu_unrolled", HOST, ("S0",), "The inner loop unrolled by 4.",
         "Four products for one load and one store of C."),
    Rung("cpu_parallel", HOST, ("S0",), "Tiles, vectors and all cores.",
         "Reuse in registers and independent strips of rows: what a GPU does on a larger scale."),
)

_CUDA = (
    Rung("naive", CUDA, ("S3",),
         "One thread an element; neighbouring threads of a warp walk different rows.",
         "A warp's 32 loads of A and 32 stores to C touch 32 different lines: uncoalesced.",
         figures=(_at(_S3_AT, 500, "ms"), *_public(1.3, 0.5),
                  *_s4(95.5152, 724.396, 28424, 228681))),
    Rung("coalesced", CUDA, ("S1 v0", "S2 v1", "S3"),
         "The same with the threads of a warp along a row of C.",
         "Swapping two indices makes whole lines of the loads: what a warp touches counts.",
         figures=(*_s1(471.78, 96.94, 1.56), _at(_S2_AT, 0.35, "TFLOPS"), _at(_S3_AT, 52, "ms"),
                  *_public(8.5, 6.2))),
    Rung("smem_strip", CUDA, ("S1 v1",),
         "A block's whole row strip of A and column strip of B in shared memory.",
         "Each element is fetched once a block; but the strips grow with K.",
         limits="K such that 4 (BM + BN) K bytes fit the shared memory of a block",
         figures=_s1(82.11, 78.92, 1.84, 256)),
    Rung("smem_tiled", CUDA, ("S0", "S1 v2", "S2 v2", "S3", "S4"),
         "A square tile slides along K through shared memory.",
         "Any K, and more blocks at a time; each product still costs two shared loads.",
         figures=(*_s1(362.50, 94.45, 7.05), _at(_S2_AT, 1.55, "TFLOPS"), _at(_S3_AT, 31, "ms"),
                  *_public(12.8, 9.1), *_s4(40.5293, 198.374, 8245.68, 59048.4))),
    Rung("smem_tiled_unrolled", CUDA, ("S0",), "The inner product unrolled by 4.",
         "Loop counters and branches are instructions too; neighbours of A come in one load."),
    Rung("thread_tile_1d", CUDA, ("S4", "siboehm"),
         "One thread computes a column of TM results.",
         "A value of B in a register serves TM products: fewer shared loads a product.",
         figures=(_at(_S3_AT, 11, "ms", "thread tiling, 1D or 2D is not said"),
                  *_public(36.5, 17.0), *_s4(35.215, 174.731, 894.779, 5880.03))),
    Rung("strided_2x2", CUDA, ("S1 v3", "S2 v3"),
         "One thread computes four results, half a tile apart.",
         "More results a thread, and the loads stay coalesced because the quadrants are apart.",
         figures=(*_s1(204.26, 84.01, 3.64), _at(_S2_AT, 3.32, "TFLOPS"))),
    Rung("padded", CUDA, ("S2 v4",),
         "The same on zero-padded operands, with no bounds tests; three copies around it.",
         "What the tests in the loop cost, against what the copies cost.",
         figures=(_at(_S2_AT, 3.44, "TFLOPS"),)),
    Rung("column_8", CUDA, ("S2 v5",),
         "Eight results of one column a thread, unrolled, padded.",
         "Nine shared loads for eight products; a warp of one row reads A as one address.",
         figures=(_at(_S2_AT, 3.65, "TFLOPS"),)),
    Rung("float4", CUDA, ("S1 v4",), "128-bit loads from global into shared memory.",
         "A quarter of the load instructions for the same bytes; computing is unchanged.",
         figures=_s1(209.60, 91.99, 3.44)),
    Rung("outer_product", CUDA, ("S1 v5", "S2 v6"),
         "Registers as a second-level cache: TM + TN loads feed TM TN products.",
         "Turning the inner product inside out raises the products a shared load feeds.",
         figures=(*_s1(206.18, 79.10, 3.50), _at(_S2_AT, 5.09, "TFLOPS"))),
    Rung("thread_tile_2d", CUDA, ("S3", "S4"), "8 x 8 results a thread on a 128 x 128 tile.",
         "Four products a shared value; now registers bound how many warps an SM holds.",
         figures=(*_public(68.7, 25.9), *_s4(34.708, 92.946, 557.829, 3509.920))),
    Rung("outer_product_float4", CUDA, ("S1 v6",),
         "4 x 4 a thread; B read and C written four columns at a time.",
         "One 128-bit instruction for four values; A, a column of its tile, still goes singly.",
         figures=_s1(84.99, 60.38, 7.28)),
    Rung("ldg_vectorized", CUDA, ("S2 v7",),
         "The padded outer product fed by 128-bit loads through the read-only cache.",
         "On Pascal a path of its own; since Volta one L1 serves both.",
         figures=(_at(_S2_AT, 6.31, "TFLOPS"),)),
    Rung("transposed_a", CUDA, ("S1 v7", "S3", "S4"),
         "A transposed on its way into shared memory; both fragments are 128-bit reads.",
         "All of the inner loop's loads are wide; the turning costs scalar stores.",
         figures=(*_s1(118.21, 65.85, 5.39), _at(_S3_AT, 10.3, "ms"), *_public(78.4, 31.4),
                  *_s4(36.567, 90.745, 427.701, 2901.475))),
    Rung("double_buffered_smem", CUDA, ("S1 v8",), "Two tiles in shared memory.",
         "One barrier a step instead of two; each thread still waits for its own loads.",
         figures=_s1(135.71, 31.56, 4.44)),
    Rung("double_buffered", CUDA, ("S3",), "Two buffers in shared memory and in registers.",
         "Loads are issued a whole tile before they are needed: latency is hidden by work.",
         figures=(_at(_S3_AT, 9.4, "ms"),)),
    Rung("warp_tiled", CUDA, ("S3",), "A warp tile between block tile and thread tile.",
         "Lanes laid out so that a 128-bit read serves half a warp at once.",
         figures=(_at(_S3_AT, 9.19, "ms"), *_public(93.7, 36.3))),
    Rung("warp_tiled_async", CUDA, ("this project",),
         "Warp tiles, swept, fed by cp.async through several buffers; block order for the L2.",
         "Copies that pass no register leave registers for results and the inner loop for FFMA.",
         limits="needs sm_80 (cp.async)"),
)

_TRITON = (
    Rung("triton_naive", TRITON, ("this project",),
         "A 16 x 16 tile a program; products are written out and summed, without tl.dot.",
         "Without tl.dot the compiler sees no matrix product: no shared memory, no tensor "
         "cores. Summed along the middle axis, Triton would find the product itself."),
    Rung("triton_tiled", TRITON, ("this project",), "BLOCK_M, BLOCK_N, BLOCK_K and tl.dot.",
         "One line asks for tensor cores and the shared memory that feeds them; but loads still "
         "go element by element, because nothing is known of alignment."),
    Rung("triton_grouped", TRITON, ("this project",),
         "Tiles are walked GROUP_M rows at a time.",
         "Programs that run together share rows of A and columns of B in the L2."),
    Rung("triton_vectorized", TRITON, ("this project",),
         "Alignment, contiguity and even K are said.",
         "128-bit loads: the compiler takes them only where it can prove that it may."),
    Rung("triton_pipelined", TRITON, ("this project",),
         "num_stages = 3: loads run ahead of the product.",
         "The second buffer by a keyword. On Hopper 2 stages hold two buffers, on sm_80 one."),
    Rung("triton_warp_tiled", TRITON, ("this project",),
         "A 128 x 128 tile shared by 8 warps.",
         "Two warpgroups multiply side by side: more reuse a byte from shared memory."),
    Rung("triton_split_k", TRITON, ("this project",),
         "K is cut into SPLIT_K parts, added in a fixed order.",
         "Work for SMs that had none where tiles are few; a second pass where they are many."),
    Rung("triton_stream_k", TRITON, ("this project", "Osama et al., PPoPP 2023"),
         "The steps of all tiles in equal shares, one share a program; cut tiles are mended.",
         "No last wave half empty; the price is two parts a program in scratch."),
    Rung("triton_persistent", TRITON, ("this project",),
         "One program an SM walks over the tiles.",
         "Launches and prologues are paid once an SM; now the store can hide under loads."),
    Rung("triton_tma", TRITON, ("this project",),
         "Tensor descriptors: tiles move as one instruction each.",
         "Threads no longer compute addresses, and hold no values on their way.",
         limits="needs sm_90 and operands aligned to 16 bytes; fp16 and bf16 (fp32 as tf32)"),
    Rung("gluon_warp_specialized", TRITON, ("this project",),
         "A producer warp copies, consumer warpgroups multiply; mbarriers between them.",
         "Nobody waits for what another could do: the tensor cores have work all the time.",
         limits="needs sm_90; fp16 and bf16"),
)

#: The ladder, bottom to top.
RUNGS: tuple[Rung, ...] = _HOST + _CUDA + _TRITON

#: The sources' own yardsticks, to print beside ours.
BASELINES: tuple[Figure, ...] = (
    _at(_S2_AT, 8.92, "TFLOPS", "cuBLAS"),
    _at(("S2", _S2_AT[1], 8192), 9.86, "TFLOPS", "cuBLAS"),
    _at(_S3_AT, 8.8, "ms", "cuBLAS"),
    _at(_H200_AT, 50.9, "TFLOPS", "cuBLAS"),
    _at(_A6000_AT, 84.8, "% of cuBLAS", "autotuned"),
    _at(_H200_AT, 31.2, "TFLOPS", "autotuned"),
)

#: S2's second table: its best padded kernel (ldg_vectorized) against cuBLAS, by size.
S2_BY_SIZE: tuple[Figure, ...] = tuple(
    _at(("S2", _S2_AT[1], size), value, "% of cuBLAS", "ldg_vectorized") for size, value in (
        (1022, 61.50), (2044, 79.90), (3135, 90.71), (4088, 78.45), (6132, 68.86),
        (8176, 70.81)))


def rungs(kind: str | None = None) -> tuple[Rung, ...]:
    """The ladder, or the rungs of one kind (``host``, ``cuda``, ``triton``)."""
    return tuple(r for r in RUNGS if kind in (None, r.kind))


def rung(name: str) -> Rung:
    """The rung ``name``. Raises :class:`UsageError` listing the known ones."""
    for one in RUNGS:
        if one.name == name:
            return one
    raise UsageError(f"no rung is named {name!r}; the rungs are "
                     f"{', '.join(r.name for r in RUNGS)}")


def figure_for(one: Rung, m: int, n: int, k: int) -> Figure | None:
    """The source's own time or rate to print beside a measurement: of the same size if there is
    one, else of the nearest size."""
    def away(figure: Figure) -> tuple[float, bool]:
        far = abs(figure.m * figure.n * figure.k / max(m * n * k, 1) - 1)
        return far, figure.source == "SGEMM_CUDA"

    told = [f for f in one.figures if not f.unit.endswith("throughput %")]
    return min(told, key=away, default=None)


def figure_text(figure: Figure | None, m: int | None = None) -> str:
    """``S3 52 ms (A100)``, with the size where it is not ``m``; empty for none."""
    if figure is None:
        return ""
    size = f" at {figure.m}" if figure.m != m else ""
    hardware = "" if figure.hardware == "not stated" else f" ({figure.hardware.split(' (')[0]})"
    return f"{figure.source} {figure.value:g} {figure.unit}{size}{hardware}"
