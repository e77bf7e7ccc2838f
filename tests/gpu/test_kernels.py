"""Every kernel on a real device, through plans, against float64: shapes, layouts, alignments."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from proving import hopper, prove, prove_repeats  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import SPECS, violation  # noqa: E402
from tritongemm.kernels.compile import launches_of  # noqa: E402
from tritongemm.kernels.constraints import Violation  # noqa: E402
from tritongemm.kernels.warp_tile import evict_first  # noqa: E402
from tritongemm.measure.numerics import check, reference  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.records.spaces import load_space  # noqa: E402

pytestmark = pytest.mark.gpu
SEED = 20261121
SHAPES = ((1, 1, 1), (16, 16, 16), (127, 129, 65), (256, 256, 256), (1, 4096, 512), (300, 8, 4096),
          (1000, 72, 264), (64, 2048, 3072), (727, 577, 859), (2048, 1536, 512))
#: Rows or columns at most, of the kernels that are for few.
FEW = {"gemv": 8, "skinny": 32}


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
@pytest.mark.parametrize("kernel", SPECS)
def test_default_config_is_right_on_every_shape(kernel, dtype, layout):
    device, spec = current_device(), SPECS[kernel]
    ran = 0
    for m, n, k in SHAPES:
        problem = GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
        config = spec.default(problem, device)
        if spec.supports(problem, device) is None and violation(problem, config, device) is None:
            prove(problem, config, seed=m + n + k)
            ran += 1
    unsupported = spec.supports(GemmProblem.contiguous(256, 256, 256, dtype=dtype, layout=layout),
                                device)
    assert ran or isinstance(unsupported, Violation)


@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("kernel", SPECS)
def test_random_configs_of_the_space_are_right(kernel, part):
    device, rng = current_device(), random.Random(f"{SEED} {part}")
    configs = list(load_space(kernel).configs())
    tried = 0
    for _ in range(70):
        dtype = rng.choice(("bf16", "fp16", "fp32"))
        size = 8 if rng.random() < 0.6 else 1
        m, n, k = (size * int(2 ** rng.uniform(3, 11) / size + 1) for _ in range(3))
        layouts = ("nn", "nt", "tn", "tt")
        if kernel in FEW:
            few = rng.randint(1, FEW[kernel])
            m, n = (few, n) if rng.random() < 0.5 else (m, few)
        if kernel == "skinny":
            k, layouts = -(-k // 8) * 8, ("nt",)
        problem = GemmProblem.contiguous(m, n, k, dtype=dtype, batch=rng.choice((1, 1, 3)),
                                         layout=rng.choice(layouts))
        if SPECS[kernel].takes.formats == ("fp32",):
            computes = SPECS[kernel].takes.computes
            problem = GemmProblem.contiguous(
                m, n, k, dtype="fp32", batch=problem.batch, layout=problem.layout,
                precision="fp16x3" if "fp16x3" in computes else "tf32")
        legal = [c for c in rng.sample(configs, min(20, len(configs)))
                 if violation(problem, c, device) is None]
        if legal:
            prove(problem, legal[0], seed=rng.randrange(2**31))
            tried += 1
        if tried == 10:
            break
    assert tried >= 4, f"seed {SEED}, part {part}: only {tried} of 70 draws were legal"


def doubled(block_m: int, block_n: int, **more: int) -> KernelConfig:
    """The same with two accumulators a group."""
    return replace(hopper(block_m, block_n, **more), num_warps=block_m // 32)


def prove_unless(rules: tuple[str, ...], problem: GemmProblem, config: KernelConfig,
                 seed: int) -> bool:
    """Proves the config, or is False where one of ``rules``, and no other, forbids it."""
    broken = violation(problem, config, current_device())
    if broken is None:
        prove(problem, config, seed=seed)
    else:
        assert broken.rule in rules, broken
    return broken is None


CLUSTERS = (hopper(64, 16, num_stages=8, cluster_k=2, swap_ab=1),
            hopper(64, 128, num_stages=4, cluster_k=4, swap_ab=1),
            hopper(64, 64, num_stages=6, cluster_k=8), hopper(64, 96, num_stages=8, cluster_k=2),
            hopper(128, 128, num_stages=4, cluster_k=2),
            hopper(128, 128, num_stages=4, cluster_k=8), hopper(192, 64, num_stages=4, cluster_k=4))


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("config", CLUSTERS, ids=str)
def test_a_cluster_sums_its_parts_of_k(config, layout):
    # many steps; one each, where there are parts enough; a batch, and of eight parts two empty;
    # rows that are copied
    proved = 0
    for m, n, k, batch in ((16, 1000, 4104, 1), (104, 328, 72, 1), (104, 1096, 1032, 3),
                           (99, 333, 1003, 1)):
        problem = GemmProblem.contiguous(m, n, k, batch=batch, layout=layout)
        aligned = replace(config, pad_operands=int(k == 1003))
        if config.swap_ab and m != 16:
            aligned = replace(aligned, block_n=max(config.block_n, 64))
        proved += prove_unless(("oversized", "cluster"), problem, aligned, seed=k)
    assert proved >= 2


@pytest.mark.parametrize("config", CLUSTERS, ids=str)
def test_a_cluster_repeats_bit_for_bit(config):
    m = config.block_n if config.swap_ab else 400
    prove_repeats(GemmProblem.contiguous(m, 3000, 4096, layout="nt", dtype="fp16"), config, 100)


#: Clusters that share operands, of each number of consumers and in each direction.
SHARING = (hopper(64, 96, num_stages=6, cluster_m=4), hopper(64, 128, num_stages=4, cluster_n=2),
           hopper(64, 64, num_stages=8, cluster_m=2, swap_ab=1),
           hopper(128, 256, num_stages=4, cluster_m=2, epilogue_subtile=2),
           hopper(128, 112, num_stages=6, cluster_m=2, cluster_n=2),
           hopper(128, 128, num_stages=4, cluster_m=4, cluster_n=2),
           hopper(192, 192, num_stages=4, cluster_n=2, epilogue_subtile=2),
           hopper(192, 64, num_stages=6, cluster_n=8), hopper(192, 128, num_stages=4, cluster_m=2),
           hopper(192, 80, num_stages=4, cluster_n=2, swap_ab=2),
           hopper(128, 112, num_stages=4, cluster_m=2, cluster_n=2, swap_ab=2),
           hopper(64, 160, num_stages=4, cluster_m=4, swap_ab=2, epilogue_subtile=2),
           doubled(256, 128, num_stages=3, cluster_m=2),
           doubled(256, 144, num_stages=3, cluster_n=4, epilogue_subtile=2),
           doubled(256, 152, num_stages=3, cluster_m=2, epilogue_subtile=2),
           doubled(128, 120, num_stages=6, cluster_m=2, cluster_n=2))
#: Turned tiles of each number of consumers.
TURNED = (hopper(64, 80, num_stages=6, swap_ab=2), hopper(128, 128, num_stages=4, swap_ab=2),
          hopper(128, 208, num_stages=4, swap_ab=2, epilogue_subtile=2),
          hopper(192, 144, num_stages=3, swap_ab=2), hopper(128, 64, num_stages=4, cluster_k=2,
                                                            swap_ab=2),
          replace(hopper(64, 112, num_stages=4, swap_ab=2), num_warps=8, pingpong=1),
          doubled(256, 112, num_stages=3, swap_ab=2),
          doubled(256, 160, num_stages=3, swap_ab=2, epilogue_subtile=2),
          doubled(128, 72, num_stages=4, swap_ab=2))


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("config", SHARING, ids=str)
def test_a_cluster_shares_operands(config, layout):
    # rows that begin inside a sector, and tiles of a cluster that lie outside C; several tiles a
    # program with one step each; a batch; parts of K; rows that are copied
    proved = 0
    for m, n, k, batch, more in ((1096, 1304, 1000, 1, {}), (2056, 4104, 56, 1, {}),
                                 (776, 1544, 520, 3, {}), (1000, 1000, 2056, 1, {"split_k": 3}),
                                 (999, 1001, 1003, 1, {"pad_operands": 1})):
        problem = GemmProblem.contiguous(min(m, 104) if config.swap_ab == 1 else m, n, k,
                                         batch=batch, layout=layout,
                                         dtype="fp16" if batch > 1 else "bf16")
        if "split_k" in more or problem.align_c < 16:
            more = more | {"epilogue_subtile": 1, "num_stages": min(config.num_stages, 4)}
        proved += prove_unless(("oversized", "shared_memory"), problem, replace(config, **more),
                               seed=k)
    assert proved >= 4


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("config", TURNED, ids=str)
def test_turned_tiles_are_stored_as_c_lies(config, layout):
    # by TMA, along rows of two alignments, as float32 and as parts of K
    for m, n, k, more, dtype_out in (
            (1000, 1304, 520, {}, None), (333, 1002, 1001, {"pad_operands": 1}, None),
            (517, 1001, 457, {"pad_operands": 1}, None), (264, 1000, 1000, {}, "fp32"),
            (1000, 1304, 1032, {"split_k": 2}, None)):
        problem = GemmProblem.contiguous(m, n, k, batch=3 if m == 517 else 1, layout=layout,
                                         dtype_out=dtype_out)
        if "split_k" in more and config.cluster_k > 1:
            continue
        if "split_k" in more or problem.align_c < 16:
            more = more | {"epilogue_subtile": 1}
        elif dtype_out == "fp32":
            more = {"epilogue_subtile": 1}  # float32 is not stored by TMA
        changed = replace(config, **more)
        assert violation(problem, changed, current_device()) is None
        prove(problem, changed, seed=k)


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("more", ({}, {"swap_ab": 2}, {"cluster_m": 2}, {"cluster_n": 2}), ids=str)
def test_the_widest_tile_is_right(more, layout):
    config = doubled(256, 176, num_stages=3, epilogue_subtile=2, **more)
    odd = 333 if layout[0] == "n" else 336  # rows of A stored across K must be aligned
    for m, n, k in ((1000, 1304, 520), (odd, 4096, 1000)):
        prove(GemmProblem.contiguous(m, n, k, layout=layout), config, seed=k)


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("config", (
    replace(doubled(256, 160, num_stages=3), block_m=128, pingpong=1),
    hopper(128, 176, num_stages=4, cluster_m=4, cluster_n=2),
    hopper(128, 176, num_stages=4, cluster_m=4, cluster_n=2, swap_ab=2),
    hopper(192, 128, num_stages=4, cluster_m=2, cluster_n=4),
    doubled(256, 144, num_stages=3, epilogue_subtile=2)), ids=str)
def test_a_result_that_the_l2_cannot_hold_is_right(config, layout):
    device = current_device()
    for m, n, k, batch in ((5608, 6000, 72, 1), (2056, 2008, 136, 8)):  # of an H200: 63 MB
        problem = GemmProblem.contiguous(m, n, k, batch=batch, layout=layout)
        assert evict_first(problem, config, device) and violation(problem, config, device) is None
        prove(problem, config, seed=k)
        prove_repeats(problem, config, 5)


@pytest.mark.parametrize("config", SHARING, ids=str)
def test_a_cluster_that_shares_operands_repeats_bit_for_bit(config):
    m = 104 if config.swap_ab == 1 else 1304
    prove_repeats(GemmProblem.contiguous(m, 3000, 1000, layout="nt", dtype="fp16"), config, 100)


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("config", (
    hopper(64, 128, num_stages=4, split_k=2), hopper(128, 128, num_stages=4, split_k=3),
    hopper(128, 96, num_stages=4, split_k=2),
    KernelConfig("warp_specialized", 64, 128, 64, num_warps=8, num_stages=4, split_k=2,
                 pingpong=1)), ids=str)
def test_a_program_goes_on_from_one_part_of_k_to_another(config, batch):
    """Its second place and its second steps are looked for apart from its first ones."""
    problem = GemmProblem.contiguous(2048, 1920, 640, layout="nt", batch=batch)
    programs = launches_of(problem, config, current_device())[0].grid[0]
    tiles = -(-2048 // config.block_m) * (1920 // config.block_n) * batch
    assert programs < tiles, "no program has two parts"
    prove(problem, config, seed=batch)


@pytest.mark.parametrize("layout", ("nn", "tn"))
def test_any_width_of_a_side_stored_across_k_is_right(layout):
    for config in (hopper(128, 144, num_stages=4), hopper(192, 96, num_stages=4),
                   hopper(64, 80, num_stages=8), hopper(64, 48, num_stages=6, swap_ab=1),
                   doubled(256, 120, num_stages=3), doubled(128, 96, num_stages=6),
                   replace(doubled(256, 152, num_stages=3), block_m=128, pingpong=1)):
        m = 48 if config.swap_ab else 1000
        for dtype, batch in (("bf16", 1), ("fp16", 2)):
            problem = GemmProblem.contiguous(m, 1048, 520, layout=layout, dtype=dtype, batch=batch)
            assert violation(problem, config, current_device()) is None
            prove(problem, config)


#: Every way that the warp-specialised kernel lies over a tile: its stores along rows of C differ.
TILES = (hopper(64, 16, num_stages=4), hopper(64, 128, num_stages=6),
         hopper(128, 128, num_stages=4), replace(hopper(256, 128, num_stages=4), num_warps=8),
         hopper(128, 128, num_stages=4, pingpong=1),
         replace(hopper(64, 176, num_stages=4), num_warps=8, pingpong=1),
         hopper(128, 256, num_stages=4), hopper(128, 208, num_stages=4),
         hopper(192, 192, num_stages=4), hopper(128, 128, num_stages=4, cluster_k=4),
         hopper(64, 96, num_stages=8, cluster_k=2),
         hopper(128, 128, num_stages=4, cluster_m=2, cluster_n=2),
         hopper(64, 176, num_stages=4, cluster_m=2), hopper(128, 112, num_stages=4, swap_ab=2),
         hopper(192, 64, num_stages=4, swap_ab=2), doubled(256, 152, num_stages=3),
         doubled(128, 88, num_stages=4), doubled(256, 96, num_stages=4, swap_ab=2))


@pytest.mark.parametrize("columns", (999, 1001, 1002, 1004))
@pytest.mark.parametrize("config", TILES, ids=str)
def test_rows_of_c_that_begin_anywhere_are_written_and_nothing_beside_them(config, columns):
    device = current_device()
    for rows, batch, gap, first in ((333, 1, 0, 0), (333, 1, 3, 1), (130, 3, 2, 0), (517, 2, 0, 0)):
        lead = columns + gap
        align = next(a for a in (8, 4, 2) if (2 * lead) % a == 0 and (2 * first) % a == 0)
        problem = replace(
            GemmProblem.contiguous(rows, columns, 456, batch=batch, layout="nt"), align_c=align)
        assert violation(problem, config, device) is None
        one = draw(problem, sets=1, seed=columns, device=torch.device("cuda"))[0]
        whole = torch.full((first + batch * rows * lead + 64,), 7.0, dtype=torch.bfloat16,
                           device="cuda")
        shape = (batch, rows, columns) if batch > 1 else (rows, columns)
        strides = (rows * lead, lead, 1)[-len(shape):]
        out = whole.as_strided(shape, strides, first)
        bind_config(problem, config, device)(one.a, one.b, out)
        report = check(out, one.a, one.b, reference(one.a, one.b))
        assert report.ok, f"{problem} {config}: {report.message}"
        out.fill_(7.0)
        assert bool((whole == 7.0).all()), "written beside the rows"


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("shift", (0, 1, 2, 3, 5))
def test_copies_of_rows_that_begin_anywhere_are_right(layout, shift):
    """Operands that begin ``shift`` elements into their memory, rows longer and shorter than a
    block of the copy, to the last element of the memory."""
    device = current_device()
    config = hopper(64, 64, num_stages=4, pad_operands=1)
    for m, n, k, batch in ((77, 90, 1101, 1), (530, 1029, 77, 1), (66, 1037, 519, 3),
                           (1030, 65, 513, 1), (65, 66, 2050, 2)):
        problem = replace(GemmProblem.contiguous(m, n, k, batch=batch, layout=layout),
                          align_a=2, align_b=2)
        assert violation(problem, config, device) is None
        one = draw(problem, sets=1, seed=shift, device=torch.device("cuda"))[0]
        moved = []
        for x in (one.a, one.b):
            memory = torch.empty(shift + x.numel(), dtype=x.dtype, device="cuda")
            moved.append(memory.as_strided(x.shape, x.stride(), shift).copy_(x))
        bind_config(problem, config, device)(*moved, one.out)
        report = check(one.out, one.a, one.b, reference(one.a, one.b))
        assert report.ok, f"{problem}: {report.message}"


@pytest.mark.parametrize("align", (2, 4, 8, 16))
@pytest.mark.parametrize("operand", ("align_a", "align_b", "align_c"))
def test_alignment_of_no_operand_changes_a_result(operand, align):
    device = current_device()
    for m, n in ((264, 328), (5, 328), (264, 1)):
        problem = replace(GemmProblem.contiguous(m, n, 520, layout="nt"), **{operand: align})
        for spec in SPECS.values():
            config = spec.default(problem, device)
            if (spec.supports(problem, device) is None
                    and violation(problem, config, device) is None):
                prove(problem, config)


def relative_error(out, a, b) -> float:
    wide = torch.matmul(a.double(), b.double())
    return float((out.double() - wide).norm() / wide.norm())


def test_offsets_beyond_two_to_the_31_are_right():
    a = torch.randn(65600, 32800, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(32800, 16, device="cuda", dtype=torch.bfloat16)
    out = tg.matmul(a, b, strict=True)
    for rows in (slice(0, 64), slice(-64, None)):
        assert relative_error(out[rows], a[rows], b) < 1e-2


@pytest.mark.parametrize("k", (1, 7, 65, 1001))
@pytest.mark.parametrize("kernel", SPECS)
def test_rows_kept_apart_may_end_anywhere(kernel, k):
    for m, n in ((5, 1000), (1000, 16), (200, 136), (1, 1)):
        problem = replace(GemmProblem.contiguous(m, n, k, layout="nt"), align_a=16, align_b=16)
        config = SPECS[kernel].default(problem, current_device())
        if violation(problem, config, current_device()) is None:
            prove(problem, config)


def test_expanded_and_gapped_operands_are_read_in_place():
    torch.manual_seed(0)
    store = torch.randn(100_000, device="cuda").bfloat16()
    a = store[3:].as_strided((120, 200), (413, 1))
    b = store[1:].as_strided((200, 90), (2, 631))
    assert relative_error(tg.matmul(a, b, strict=True), a, b) < 1e-2
    a = torch.randn(1, 240, device="cuda").half().expand(180, 240)
    b = torch.randn(240, 1, device="cuda").half().expand(240, 200)
    assert relative_error(tg.matmul(a, b, strict=True), a, b) < 1e-2


def test_results_repeat_bit_for_bit():
    for shape in ((16, 512, 16384), (777, 333, 1111), (1024, 1024, 1024)):
        a = torch.randn(shape[0], shape[2], device="cuda").bfloat16()
        b = torch.randn(shape[2], shape[1], device="cuda").bfloat16()
        first = tg.matmul(a, b, strict=True)
        assert all(torch.equal(first, tg.matmul(a, b, strict=True)) for _ in range(20))


def test_graph_capture_replays_a_warm_plan():
    a, b = (torch.randn(512, 512, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty(512, 512, device="cuda", dtype=torch.bfloat16)
    tg.matmul(a, b, out=out, strict=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tg.matmul(a, b, out=out, strict=True)
    a.copy_(torch.randn_like(a))
    out.fill_(float("nan"))
    graph.replay()
    assert relative_error(out, a, b) < 1e-2


def test_a_cold_problem_goes_to_torch_while_a_graph_is_captured():
    a, b = torch.randn(200, 136, device="cuda"), torch.randn(136, 328, device="cuda")
    torch.mm(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tg.matmul(a, b)
    graph.replay()
    assert relative_error(out, a, b) < 1e-5


def test_many_threads_on_their_own_streams_get_right_results():
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(50):
                    m, n, k = ((64, 96, 128), (16, 256, 4096), (512, 512, 64))[(seed + i) % 3]
                    a = torch.randn(m, k, device="cuda", generator=generator).bfloat16()
                    b = torch.randn(k, n, device="cuda", generator=generator).bfloat16()
                    error = relative_error(tg.matmul(a, b, strict=True), a, b)
                    if not error < 1e-2:
                        failures.append(f"thread {seed}, call {i}: error {error}")
        except Exception as error:
            failures.append(f"thread {seed}: {error!r}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
