"""Each legality rule of each kernel: a problem or a config that breaks it, and what is said."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, interpreter_device, representative
from tritongemm.errors import ConfigError, ConstraintError
from tritongemm.kernels import SPECS, shared_bytes, spec_named, violation
from tritongemm.kernels.constraints import WASTE
from tritongemm.problem import LAYOUTS, GemmProblem

H200 = representative(90)
#: Rules of what a spec takes, which stand in no kernel's constraints.
TAKES = ("dtype", "precision", "scale", "grouping", "batch_strides")
#: A legal config of each kernel for SQUARE, from which each case departs.
LEGAL = {
    "tiled": KernelConfig("tiled", 128, 128, 64, num_warps=8, num_stages=3),
    "persistent_tma": KernelConfig("persistent_tma", 128, 128, 64, num_warps=8, num_stages=3),
    "warp_specialized": KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4),
    "gemv": KernelConfig("gemv", 4, 16, 256, num_warps=4, num_stages=3),
    "skinny": KernelConfig("skinny", 16, 16, 256, num_warps=4, num_stages=3),
    "split_product": KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3),
    "scaled_product": KernelConfig("scaled_product", 128, 256, 64, num_warps=8, num_stages=4),
    "tiled_bf16x6": KernelConfig("tiled_bf16x6", 64, 64, 32, num_warps=4, num_stages=3),
    "simt": KernelConfig("simt", 64, 128, 32, num_warps=4, num_stages=2, thread_m=8, thread_n=8),
}
SQUARE = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
FP32 = GemmProblem.contiguous(4096, 4096, 4096, dtype="fp32")
HUGE = replace(SQUARE, m=2**31 - 1, n=2**31 - 1)
THIN = replace(SQUARE, m=4)
FEW = replace(SQUARE, m=16)
SPLIT = GemmProblem.contiguous(4096, 4096, 4096, dtype="fp32", layout="nt", precision="fp16x3")
TF32 = replace(SPLIT, precision="tf32")
#: The problem for which a kernel's config is legal, where that is not SQUARE.
PROBLEMS_OF = {"gemv": THIN, "skinny": FEW, "split_product": SPLIT, "scaled_product": TF32,
               "tiled_bf16x6": SPLIT, "simt": FP32}


@dataclass(frozen=True)
class Breach:
    """``kernel``'s legal config with ``changes``, or another problem, breaks ``rule``."""

    kernel: str
    rule: str
    says: str
    changes: dict = field(default_factory=dict)
    problem: GemmProblem | None = None
    arch: int = 90

    @property
    def of(self) -> GemmProblem:
        return self.problem or PROBLEMS_OF.get(self.kernel, SQUARE)

    def __str__(self) -> str:
        return "-".join([self.kernel, self.rule, *(f"{k}={v}" for k, v in self.changes.items())])


def everywhere(rule: str, says: str, kernels: tuple[str, ...] = tuple(SPECS), changes=None,
               **problem):
    """The same of several kernels; ``problem``: what is changed in each one's own."""
    return tuple(Breach(kernel, rule, says, changes or {}, replace(
        PROBLEMS_OF.get(kernel, SQUARE), **problem)) for kernel in kernels)


TILES = tuple(kernel for kernel in SPECS if kernel not in PROBLEMS_OF)
TL = ("tiled", "persistent_tma")
TMA = ("persistent_tma", "warp_specialized")
SPLITS = ("tiled", "warp_specialized")
FP32_SPLIT = ("split_product", "tiled_bf16x6")
FP32_ONLY = (*FP32_SPLIT, "scaled_product", "simt")
SCRATCH_PARTS = ("split_product", "scaled_product")
BITS_16 = tuple(kernel for kernel in SPECS if kernel not in FP32_ONLY)
BREACHES = (
    *everywhere("dtype", "operands of two dtypes, bf16 and fp16", BITS_16, dtype_b="fp16"),
    *everywhere("dtype", "takes .*, not fp64", BITS_16, dtype_a="fp64", dtype_b="fp64",
                dtype_out="fp64"),
    *everywhere("dtype", "writes bf16 or fp32, not fp16", BITS_16, dtype_out="fp16"),
    *(Breach(kernel, "dtype", "takes fp32, not bf16", problem=SQUARE) for kernel in FP32_ONLY),
    *everywhere("dtype", "writes fp32, not bf16", FP32_ONLY, dtype_out="bf16"),
    *(Breach(kernel, "precision", "at precision fp16x3.*; at precision ieee it does not",
             problem=FP32) for kernel in FP32_SPLIT),
    *(Breach("scaled_product", "precision", f"at precision tf32; at precision {x} it does not",
             problem=replace(FP32, precision=x)) for x in ("ieee", "fp16x3")),
    Breach("tiled_bf16x6", "precision", "at precision fp16x3; at precision tf32 it does not",
           problem=replace(FP32, precision="tf32")),
    *(Breach("tiled_bf16x6", "tile", says, changes) for says, changes in (
        ("block_k=256 is not 16, 32, 64 or 128", {"block_k": 256}),
        ("64x64x128 on 4 warps: a thread splits 128 elements a step, more than 64",
         {"block_k": 128}))),
    Breach("tiled_bf16x6", "unused", "swap_ab=1: this kernel has no such parameter",
           {"swap_ab": 1}),
    Breach("tiled_bf16x6", "oversized", "block_m=64 is at least four times the extent 16",
           problem=replace(SPLIT, m=16)),
    Breach("tiled_bf16x6", "registers", "at least 2. Use fewer warps",
           {"block_m": 16, "block_n": 16, "num_warps": 8}),
    Breach("tiled_bf16x6", "split_k", "split_k=16 cuts 8 steps", {"split_k": 16},
           replace(SPLIT, k=256)),
    Breach("tiled_bf16x6", "grid", "a grid has at most 2147483647 programs",
           problem=replace(SPLIT, m=HUGE.m, n=HUGE.n)),
    Breach("tiled_bf16x6", "shared_memory", r"num_stages=20 needs \d+ bytes of shared memory",
           {"num_stages": 20}),
    *(breach for name in ("block_m", "block_n", "num_warps") for breach in everywhere(
        "power_of_two", f"{name}=96 is not a power of two", ("tiled_bf16x6",),
        changes={name: 96})),
    *(breach for name in ("block_m", "block_n", "block_k") for breach in everywhere(
        "dot_shape", f"{name}=8 is below 16", ("tiled_bf16x6",), changes={name: 8})),
    Breach("simt", "precision", "at precision ieee or fp16x3; at precision tf32 it does not",
           problem=replace(FP32, precision="tf32")),
    *(Breach("simt", "register_tile", says, changes, problem) for says, changes, problem in (
        ("thread_m=0 is not 4, 8 or 16", {"thread_m": 0}, None),
        ("thread_n=16 is more than the tile's block_n", {"block_n": 8, "thread_n": 16}, None),
        ("64x128 in register tiles of 8x4 is 256 threads; num_warps=4 is 128. Use num_warps=8",
         {"thread_n": 4}, None),
        ("block_k=64 is not 16 or 32", {"block_k": 64}, None),
        ("16x16x32 unrolls 8192 multiply-adds; at most 4096",
         {"thread_m": 16, "thread_n": 16, "num_warps": 1}, None),
        ("16x16 results a thread are more than 128",
         {"thread_m": 16, "thread_n": 16, "num_warps": 1, "block_k": 16}, None),
        ("thread_m=16 takes too many registers of an operand that nn stores along K",
         {"thread_m": 16, "num_warps": 2}, None),
        ("thread_n=16 takes too many registers of an operand that nt stores along K",
         {"thread_n": 16, "num_warps": 2}, replace(FP32, layout="nt")),
        ("or whose rows are not aligned to 16 bytes. Use thread_n=8",
         {"thread_n": 16, "num_warps": 2, "block_k": 16}, replace(FP32, align_b=8)),
        (r"needs about \d+ registers; 16 warps leave each 128",
         {"block_m": 128, "block_n": 256, "num_warps": 16}, None),
        ("num_stages=1 is below 2", {"num_stages": 1}, None))),
    *(Breach("simt", "unused", f"{name}={value}: this kernel has no such parameter",
             {name: value}) for name, value in (
        ("epilogue_subtile", 2), ("pingpong", 1), ("swap_ab", 1), ("pad_operands", 1),
        ("cluster_k", 2), ("warp_m", 8))),
    Breach("simt", "extents", "m=8 and n=3: a tile has at least 16x32 results. Use gemv or tiled",
           problem=replace(FP32, m=8, n=3)),
    Breach("simt", "oversized", "block_m=64 is at least four times the extent 16",
           problem=replace(FP32, m=16)),
    Breach("simt", "split_k", "split_k=16 cuts 8 steps", {"split_k": 16}, replace(FP32, k=256)),
    Breach("simt", "grid", "a grid has at most 2147483647 programs",
           problem=replace(FP32, m=HUGE.m, n=HUGE.n)),
    Breach("simt", "shared_memory", r"num_stages=20 needs \d+ bytes of shared memory",
           {"num_stages": 20}),
    *(breach for name in ("block_m", "block_n", "num_warps") for breach in everywhere(
        "power_of_two", f"{name}=96 is not a power of two", ("simt",), changes={name: 96})),
    *(Breach(kernel, "arch", "runs on sm_90; NVIDIA .* is sm_", arch=arch)
      for arch in (80, 100) for kernel in SCRATCH_PARTS),
    *(breach for extent in ("m", "n", "k", "batch") for breach in everywhere(
        "empty", "empty extent", SCRATCH_PARTS, **{extent: 0})),
    *(breach for name, value in (
        ("epilogue_subtile", 2), ("swap_ab", 1), ("pad_operands", 1), ("cluster_k", 2),
        ("thread_m", 8)) for breach in everywhere(
        "unused", f"{name}={value}: this kernel has no such parameter", SCRATCH_PARTS,
        changes={name: value})),
    *(Breach("split_product", "unused", f"{name}={value}: this kernel has no such parameter",
             {name: value}) for name, value in (
        ("pingpong", 1), ("cluster_m", 2), ("cluster_n", 2))),
    *(Breach("scaled_product", rule, says, changes) for rule, says, changes in (
        ("powers", "block_n=100 is not a multiple of 8", {"block_n": 100}),
        ("consumers", "num_warps=6; consumers are one to three groups", {"num_warps": 6}),
        ("consumers", "pingpong=1 needs two consumer groups", {"pingpong": 1, "num_warps": 4}),
        ("tile", "block_m=64 gives a consumer 32 rows", {"block_m": 64}),
        ("tile", "block_k=32 is 64 bytes of fp16; one swizzled row", {"block_k": 32}),
        ("tile", "128x176 a consumer is 176 accumulator registers a thread; at most 160",
         {"block_m": 256, "block_n": 176}),
        ("sharing", "cluster_m=2, cluster_n=1 goes with pingpong=0",
         {"block_m": 64, "pingpong": 1, "cluster_m": 2}),
        ("sharing", "a cluster has 2, 4 or 8 programs", {"cluster_m": 4, "cluster_n": 4}),
        ("shared_memory", r"num_stages=5 needs \d+ bytes of shared memory", {"num_stages": 5}))),
    Breach("scaled_product", "oversized", "block_m=128 is at least twice the extent 64",
           problem=replace(TF32, m=64)),
    Breach("scaled_product", "oversized", "cluster_m=2 programs of block_m=128 for the extent 100",
           {"cluster_m": 2}, replace(TF32, m=100)),
    *(Breach("split_product", "tile", says, changes) for says, changes in (
        ("num_warps=6; consumers are one to three groups", {"num_warps": 6}),
        ("block_m=64 on 8 warps: a group of 4 warps has 64 rows", {"block_m": 64}),
        ("block_k=32; a step along K is 64 elements", {"block_k": 32}),
        ("block_n=100 is not a multiple of 8 from 16 to 256", {"block_n": 100}),
        ("num_stages=1 is outside 2 to 13", {"num_stages": 1}),
        ("block_n=256 takes 296 registers a thread of 232", {"block_n": 256}))),
    Breach("split_product", "oversized", "block_m=128 is at least twice the extent 64",
           problem=replace(SPLIT, m=64)),
    Breach("split_product", "oversized", "block_n=128 is at least twice the extent 32",
           problem=replace(SPLIT, n=32)),
    *everywhere("scratch", r"take \d+ bytes of scratch; at most 4294967296", SCRATCH_PARTS,
                m=2**18, k=2**14),
    *everywhere("split_k", "split_k=16 cuts 8 steps", SCRATCH_PARTS, changes={"split_k": 16},
                k=512),
    Breach("split_product", "shared_memory", r"num_stages=4 needs \d+ bytes of shared memory",
           {"num_stages": 4}),
    *everywhere("scale", "takes no scales; A has scale row", scale_a="row"),
    *everywhere("scale", "takes no scales; B has scale 1x128", scale_b="1x128"),
    *everywhere("grouping", "takes no groups; grouping is m8", grouping="m8"),
    *everywhere("batch_strides", "takes one along the batch; two_strides is a",
                ("persistent_tma", "skinny", "scaled_product", *FP32_SPLIT), two_strides="a",
                batch=6),
    *everywhere("batch_strides", "takes two of A, B along the batch; two_strides is bc",
                ("warp_specialized",), two_strides="bc", batch=6),
    *everywhere("batch_strides", "split_k=2 adds its parts into a C with one stride",
                ("tiled", "gemv", "simt"), changes={"split_k": 2}, two_strides="ac", batch=6),
    Breach("warp_specialized", "alignment", "pad_operands=1 copies operands with one stride",
           {"pad_operands": 1}, replace(SQUARE, align_a=2, batch=6, two_strides="b")),
    *everywhere("dtype", "takes bf16, fp16, not fp32", ("skinny",),
                dtype_a="fp32", dtype_b="fp32", dtype_out="fp32"),
    *(Breach("warp_specialized", "precision", f"at precision tf32; at precision {x} it does not",
             problem=replace(FP32, precision=x)) for x in ("ieee", "fp16x3")),
    Breach("warp_specialized", "alignment", "pad_operands=1 copies operands of 16 bits, not fp32",
           {"block_k": 32, "pad_operands": 1}, replace(TF32, align_a=4)),
    Breach("persistent_tma", "arch", "runs on sm_90, sm_100; NVIDIA A100.* is sm_80", arch=80),
    *(Breach(kernel, "arch", "runs on sm_90; NVIDIA B200 is sm_100", arch=100)
      for kernel in ("warp_specialized", "skinny")),
    Breach("skinny", "arch", "runs on sm_90; NVIDIA A100.* is sm_80", arch=80),
    Breach("persistent_tma", "precision", "fp32 at precision tf32; at precision ieee it does not",
           problem=FP32),
    Breach("persistent_tma", "precision", "tf32; at precision fp16x3 it does not",
           problem=replace(FP32, precision="fp16x3")),
    Breach("persistent_tma", "tf32_layout", "nt only", problem=replace(TF32, layout="nn")),
    Breach("warp_specialized", "tf32_layout", "tf32 in tn: .* neither is stored so",
           problem=replace(TF32, layout="tn")),
    *(Breach("warp_specialized", "tf32_swap", f"tf32 in {layout} with swap_ab={swap}: .* In nn use "
             "swap_ab=1, in tt swap_ab=0", {"block_k": 32, "swap_ab": swap},
             replace(TF32, layout=layout)) for layout, swap in (("nn", 0), ("tt", 1), ("tt", 2))),
    Breach("warp_specialized", "sharing", "cluster_n=8: a program would load 4 rows of K of A",
           {"block_k": 32, "block_m": 64, "block_n": 16, "num_warps": 4, "cluster_n": 8},
           replace(TF32, layout="tt")),
    *(Breach("warp_specialized", "tile", f"swap_ab=1 and 128 rows a consumer; at most {most}",
             {"block_k": 32, "block_m": rows, "block_n": most + 16, "pingpong": turns,
              "swap_ab": 1, "num_stages": 3}, replace(TF32, layout="nt"))
      for most, rows, turns in ((112, 256, 0), (128, 128, 1))),
    *(Breach("warp_specialized", "tile",
             f"beside the matrix D of the epilogue 'add'; at most {most}",
             {"block_k": 32, "block_m": 128, "block_n": n, "swap_ab": swap, "num_stages": 3},
             replace(TF32, epilogue="add", layout=layout))
      for most, n, swap, layout in ((112, 256, 0, "tt"), (80, 96 + 80, 1, "nn"))),
    *(Breach("warp_specialized", "tf32_layout", f"tf32 in nn is computed swapped, .*{words}.* not",
             problem=replace(TF32, layout="nn", epilogue=words))
      for words in ("gated_silu",)),
    Breach("warp_specialized", "tile", "128x144 a consumer and A in registers are 208 registers",
           {"block_k": 32, "block_m": 256, "block_n": 144}, replace(TF32, layout="tt")),
    *(breach for extent in ("m", "n", "k", "batch") for breach in everywhere(
        "empty", "empty extent", TMA, **{extent: 0})),
    *(breach for x in "ab" for breach in everywhere(
        "alignment", f"operand {x.upper()} is aligned to 8 bytes; TMA needs 16", TMA,
        **{f"align_{x}": 8})),
    *(Breach("warp_specialized", "alignment", "aligned already", {"pad_operands": level}, problem)
      for level, problem in ((1, SQUARE), (2, SQUARE), (2, replace(SQUARE, align_a=2, align_b=2)),
                             (1, replace(SQUARE, k=4088)))),
    *everywhere("flags", "dependent_launch=3 is not 0, 1 or 2", changes={"dependent_launch": 3}),
    *everywhere("flags", "pad_operands=3 is not 0, 1 or 2", ("warp_specialized",),
                changes={"pad_operands": 3}),
    *everywhere("flags", "pingpong=2 is neither 0 nor 1", ("warp_specialized",),
                changes={"pingpong": 2}),
    Breach("skinny", "flags", "swap_ab=2 is neither 0 nor 1", {"swap_ab": 2}),
    Breach("warp_specialized", "alignment", r"needs \d+ bytes of scratch; at most 1073741824",
           {"pad_operands": 1}, replace(SQUARE, m=2**18, align_a=2)),
    Breach("persistent_tma", "c_stride", "inner stride of 1", problem=replace(SQUARE, align_c=1)),
    *(Breach(kernel, "unused", f"{name}={value}: this kernel has no such parameter", {name: value})
      for kernel, names in (("tiled", ("epilogue_subtile", "cluster_k", "cluster_m", "swap_ab")),
                            ("persistent_tma", ("split_k", "pingpong", "pad_operands")),
                            ("gemv", ("epilogue_subtile", "cluster_n", "pingpong",
                                      "pad_operands")),
                            ("skinny", ("epilogue_subtile", "cluster_k", "pingpong",
                                        "pad_operands", "thread_m", "thread_n", "warp_m",
                                        "warp_n")),
                            ("warp_specialized", ("thread_m", "warp_n")))
      for name, value in ((n, 2) for n in names)),
    *(breach for name in ("block_m", "block_n", "block_k", "num_warps")
      for breach in everywhere("power_of_two", f"{name}=96 is not a power of two",
                               (*TL, "gemv"),
                               changes={name: 96})),
    Breach("warp_specialized", "powers", "block_k=96 is not a power of two", {"block_k": 96}),
    Breach("warp_specialized", "powers", "block_n=76 is not a multiple of 8", {"block_n": 76}),
    Breach("warp_specialized", "grid", "2147483648 tiles",
           {"block_m": 64, "block_n": 16, "num_warps": 4, "cluster_k": 2},
           replace(SQUARE, m=2**20, n=2**20)),
    *(Breach("warp_specialized", "cluster", says, {"num_stages": 4, "cluster_k": 2} | changes,
             problem)
      for says, changes, problem in (
          ("cluster_k=3 is not 1, 2, 4 or 8", {"cluster_k": 3}, None),
          ("it goes with pingpong=0, split_k=1, epilogue_subtile=1", {"split_k": 2}, None),
          ("it goes with pingpong=0", {"pingpong": 1}, None),
          ("it goes with .* epilogue_subtile=1", {"epilogue_subtile": 2}, None),
          ("each program sums a multiple of 8 columns", {"cluster_k": 4, "block_n": 16}, None),
          ("a consumer must have 64 rows, not those of block_m=256", {"block_m": 256}, None),
          ("sends what 4 stages have room for, not num_stages=2", {"num_stages": 2}, None),
          ("cluster_k=8 cuts 2 steps of block_k=64; one each at least", {"cluster_k": 8},
           replace(SQUARE, k=128)))),
    *(Breach("warp_specialized", "sharing", says, {"num_stages": 3, "cluster_m": 2} | changes,
             problem)
      for says, changes, problem in (
          ("a cluster has 2, 4 or 8 programs, each side a power of two", {"cluster_m": 3}, None),
          ("a cluster has 2, 4 or 8 programs", {"cluster_m": 4, "cluster_n": 4}, None),
          ("cluster_m=2, cluster_n=1 goes with pingpong=0 and cluster_k=1", {"pingpong": 1}, None),
          ("goes with pingpong=0 and cluster_k=1", {"cluster_k": 2, "num_stages": 4}, None))),
    Breach("warp_specialized", "grid", "m=2147483392 and a tile's side of 384",
           {"block_m": 192, "block_n": 16, "num_warps": 12, "num_stages": 4, "cluster_m": 2},
           GemmProblem.contiguous(2**31 - 256, 16, 8, layout="nt")),
    Breach("warp_specialized", "tile", "block_n=8 is outside 16 to 256",
           {"swap_ab": 2, "block_n": 8, "num_stages": 3}),
    Breach("warp_specialized", "powers", "block_m=384 is more than the 256 rows that one box",
           {"swap_ab": 2, "block_m": 384, "block_n": 64, "num_warps": 12}),
    Breach("warp_specialized", "flags", "swap_ab=3 is not 0, 1 or 2", {"swap_ab": 3}),
    Breach("warp_specialized", "oversized",
           "cluster_n=4 programs of block_n=128 for the extent 300",
           {"block_n": 128, "cluster_n": 4, "num_stages": 3}, replace(SQUARE, n=300)),
    Breach("warp_specialized", "tile", "168 accumulator registers a thread; at most 160",
           {"block_n": 168, "block_m": 256, "num_stages": 3}),
    Breach("warp_specialized", "tile", "176 accumulator registers a thread; at most 160",
           {"block_n": 176, "block_m": 256, "num_stages": 3, "epilogue_subtile": 2},
           replace(SQUARE, epilogue="add")),
    Breach("warp_specialized", "tile", "192 accumulator registers a thread; at most 176",
           {"block_n": 192, "block_m": 256, "num_stages": 3}),
    *(breach for name in ("block_m", "block_n", "block_k")
      for breach in everywhere("dot_shape", f"{name}=8 is below 16", TL, changes={name: 8})),
    Breach("persistent_tma", "box", "block_n=512; a tensor map's box has at most 256",
           {"block_n": 512}),
    Breach("persistent_tma", "wgmma", "groups of 4 warps", {"num_warps": 2}),
    Breach("persistent_tma", "wgmma", "16 rows a warp", {"block_m": 64}),
    *everywhere("oversized", "block_m=128 is at least", TILES, m=30),
    *everywhere("oversized", "block_n=128 is at least", TILES, n=32),
    *everywhere("oversized", "block_k=64 is at least four times the extent 16", TL, k=16),
    *everywhere("registers", "256 accumulator registers a thread; at most 128. Use more warps", TL,
                changes={"block_n": 256, "block_m": 128, "num_warps": 4}),
    Breach("tiled", "registers", "at least 2. Use fewer warps",
           {"block_m": 16, "block_n": 16, "num_warps": 8}),
    Breach("persistent_tma", "registers", "at least 2. Use fewer warps",
           {"block_m": 256, "block_n": 16, "num_warps": 128}, arch=100),
    Breach("tiled", "fma_tile", "unrolls 8192 multiply-adds of 64 results a thread; at most 4096",
           {"block_k": 128}, FP32),
    Breach("persistent_tma", "subtile", "leaves pieces of 16 columns", {"epilogue_subtile": 8}),
    Breach("warp_specialized", "subtile", "is not 1, 2 or 4", {"epilogue_subtile": 8}),
    Breach("warp_specialized", "subtile", "leaves 16 columns; at least 32",
           {"epilogue_subtile": 4, "block_n": 64}),
    Breach("warp_specialized", "subtile", "tiles that TMA stores",
           {"epilogue_subtile": 2, "split_k": 2}),
    Breach("warp_specialized", "consumers", "num_warps=2; consumers are", {"num_warps": 2}),
    Breach("warp_specialized", "consumers", "pingpong=1 needs two consumer groups",
           {"pingpong": 1, "num_warps": 4, "block_m": 64}),
    Breach("warp_specialized", "consumers", "num_stages=1 is outside 2 to 13", {"num_stages": 1}),
    Breach("warp_specialized", "consumers", "num_stages=14", {"num_stages": 14}),
    Breach("warp_specialized", "tile", "32 rows", {"block_m": 64}),
    Breach("warp_specialized", "tile", "block_n=8 is outside 16 to 256", {"block_n": 8}),
    Breach("warp_specialized", "tile", "block_k=32 is 64 bytes of bf16; one swizzled row",
           {"block_k": 32}),
    Breach("warp_specialized", "tile", "256 accumulator registers a thread; at most 128",
           {"block_m": 256, "block_n": 256}),
    Breach("warp_specialized", "tile", "block_n=256 on 4 warps", {
        "block_m": 64, "block_n": 256, "num_warps": 4}),
    Breach("warp_specialized", "tile", "block_n=240 on 8 warps.*at most 224", {"block_n": 240}),
    Breach("warp_specialized", "subtile", "with one buffer it is 1, all epilogue tiles",
           {"block_n": 144, "epilogue_subtile": 4}),
    Breach("warp_specialized", "subtile", "block_n=120 is one epilogue tile",
           {"block_n": 120, "epilogue_subtile": 2}),
    Breach("warp_specialized", "tile", "does not divide among 3",
           {"block_m": 193, "num_warps": 12}),
    Breach("warp_specialized", "tile", "too much for three consumers",
           {"block_m": 384, "block_n": 128, "num_warps": 12}),
    *everywhere("epilogue", "split_k=2 with the epilogue 'gated_silu', which the pass that adds",
                SPLITS, changes={"split_k": 2}, epilogue="gated_silu"),
    Breach("warp_specialized", "epilogue", "'gelu.aux' goes with swap_ab=0, not 2",
           {"swap_ab": 2}, replace(SQUARE, epilogue="gelu+aux")),
    Breach("warp_specialized", "swap", "swap_ab=1 is for one narrow side; 4096 and 4096 are",
           {"swap_ab": 1}),
    *everywhere("split_k", "split_k=128 cuts 64 steps of block_k=64", SPLITS,
                changes={"split_k": 128}),
    *everywhere("split_k", r"split_k=16 needs \d+ bytes of float32 partials; at most 1073741824",
                SPLITS, changes={"split_k": 16}, m=8192),
    *everywhere("split_k", r"split_k=32 makes \d+ units for 132 SMs; at most four an SM", SPLITS,
                changes={"split_k": 32}),
    Breach("warp_specialized", "split_k", "split_k=64 makes 1024 units for 132 SMs; at most four",
           {"block_m": 64, "block_n": 16, "num_warps": 4, "swap_ab": 1, "split_k": 64},
           replace(SQUARE, m=16, n=1024)),
    *(Breach(kernel, "grid", f"{name}=2147483647 and a tile's side of .* Cut the problem along",
             {}, replace(problem, **{name: 2**31 - 1})) for kernel, name, problem in (
        *(("tiled", name, SQUARE) for name in "mnk"), ("gemv", "n", THIN), ("gemv", "k", THIN),
        ("skinny", "n", FEW),
        ("persistent_tma", "n", replace(SQUARE, align_c=16)), ("warp_specialized", "m", SQUARE))),
    Breach("gemv", "split_k", "split_k=32 makes 1024 units for 132 SMs; at most four an SM",
           {"block_m": 1, "num_stages": 2, "swap_ab": 1, "split_k": 32},
           GemmProblem.contiguous(512, 1, 8192)),
    *everywhere("grid", "a grid has at most 2147483647 programs", TILES, m=HUGE.m, n=HUGE.n),
    *everywhere("shared_memory",
                r"num_stages=12 needs \d+ bytes of shared memory; sm_90 allows 232448. Use fewer "
                "stages or epilogue_subtile=2", TILES, changes={"num_stages": 12}),
    Breach("gemv", "skinny", "is for M or N of at most 8, not 4096 and 9", {"swap_ab": 1},
           replace(SQUARE, n=9)),
    Breach("gemv", "rows", "block_m=4 for m=5; use the next power of two, 8", {}, replace(THIN,
                                                                                         m=5)),
    Breach("gemv", "rows", "block_m=4 for n=1; use the next power of two, 1", {"swap_ab": 1},
           replace(SQUARE, n=1)),
    Breach("gemv", "rows", "swap_ab=1 makes n=4096 the rows of A; at most 8. Use swap_ab=0",
           {"swap_ab": 1}),
    Breach("gemv", "oversized", "block_k=256 is at least four times the extent 64", {},
           replace(THIN, k=64)),
    Breach("gemv", "oversized", "block_k=32 is 64 bytes of the contiguous side; a line has 128",
           {"block_k": 32, "block_n": 64}),
    Breach("gemv", "oversized", "block_n=16 is 32 bytes of the contiguous side", {},
           replace(THIN, layout="nn")),
    Breach("gemv", "threads", "16x32 is less than a load of 8 elements for each of 128 threads",
           {"block_k": 32}),
    Breach("gemv", "registers", "4x64x512 on 4 warps wants about 560 registers a thread; at most "
           "228. Use more warps", {"block_n": 64, "block_k": 512}),
    Breach("gemv", "registers", "8x64x256 on 16 warps wants about 144 registers a thread; at most "
           "114. Use a smaller tile", {"block_m": 8, "block_n": 64, "num_warps": 16,
                                       "num_stages": 1}, replace(THIN, m=8)),
    Breach("gemv", "registers", "num_stages=3 with rows of A that are not contiguous along K", {},
           replace(THIN, layout="tt")),
    Breach("gemv", "copies", "num_stages=3 with loads of 2 bytes; an asynchronous copy", {},
           replace(THIN, align_b=2)),
    Breach("gemv", "unrolled", "block_k=128 unrolls 32 loads of B and 128 of A; at most 72",
           {"block_n": 256, "block_k": 128, "num_stages": 2}, replace(THIN, layout="nn")),
    Breach("gemv", "unrolled", "unrolls 8 loads of B and 32 of A, into 5 buffers; at most 72. Use "
           "a smaller block_k or fewer stages", {"block_n": 64, "block_k": 64, "num_stages": 6},
           GemmProblem.contiguous(4, 4096, 4096, dtype="fp32")),
    Breach("gemv", "grid", "a grid has at most 2147483647 programs", {}, replace(
        THIN, n=2**31 - 1, batch=2**10)),
    Breach("gemv", "shared_memory", r"num_stages=12 needs \d+ bytes of shared memory",
           {"num_stages": 12, "block_n": 32}),
    *everywhere("split_k", "split_k=32 cuts 16 steps of block_k=256", ("gemv", "skinny"),
                changes={"split_k": 32}),
    *(Breach("skinny", "skinny", f"loads both operands along K: nt, not {layout}",
             problem=replace(FEW, layout=layout)) for layout in LAYOUTS if layout != "nt"),
    Breach("skinny", "skinny", "is for M or N of at most 32, not 4096 and 33", {"swap_ab": 1},
           replace(SQUARE, n=33)),
    Breach("skinny", "skinny", "loads 16 bytes at a time; A's rows are aligned to 8, B's to 16",
           problem=replace(FEW, align_a=8)),
    Breach("skinny", "skinny", "A's rows are aligned to 16, B's to 2",
           problem=replace(FEW, align_b=2)),
    Breach("skinny", "rows", "block_m=16 for m=8; use 8", problem=replace(FEW, m=8)),
    Breach("skinny", "rows", "block_m=16 for m=17; use 32", problem=replace(FEW, m=17)),
    Breach("skinny", "rows", "block_m=64 for m=32; use 32", {"block_m": 64}, replace(FEW, m=32)),
    Breach("skinny", "rows", "block_m=16 for n=1; use 8", {"swap_ab": 1}, replace(SQUARE, n=1)),
    Breach("skinny", "rows", "swap_ab=1 makes n=4096 the rows of A; at most 32. Use swap_ab=0",
           {"swap_ab": 1}),
    Breach("skinny", "rows", "swap_ab=0 makes m=4096 the rows of A; at most 32. Use swap_ab=1",
           problem=replace(SQUARE, n=16)),
    *(Breach("skinny", "tile", says, changes) for says, changes in (
        ("num_warps=3 is not 1, 2, 4, 8 or 16", {"num_warps": 3}),
        ("num_warps=32 is not 1, 2, 4, 8 or 16", {"num_warps": 32, "block_k": 1024}),
        ("block_n=8 is not 16, 32 or 64", {"block_n": 8}),
        ("block_n=48 is not 16, 32 or 64", {"block_n": 48}),
        ("block_n=128 is not 16, 32 or 64", {"block_n": 128}),
        ("block_k=64 on 4 warps; each loads a multiple of 32", {"block_k": 64}),
        ("block_k=192 on 4 warps; each loads a multiple of 32", {"block_k": 192}),
        ("num_stages=9 is outside 1 to 8", {"num_stages": 9}))),
    Breach("skinny", "registers", "16x16x512 on 4 warps in 4 stages wants about 292 registers a "
           "thread; at most 250. Use fewer stages", {"block_k": 512, "num_stages": 4}),
    Breach("skinny", "registers", "on 8 warps in 3 stages wants about 252 .* at most 248",
           {"block_m": 32, "block_n": 64, "num_warps": 8}, replace(FEW, m=32)),
    Breach("skinny", "registers", "on 16 warps in 1 stages wants about 156 .* at most 120",
           {"block_m": 32, "block_n": 64, "block_k": 512, "num_warps": 16, "num_stages": 1},
           replace(FEW, m=32)),
    Breach("skinny", "split_k", "split_k=32 makes 8192 units for 132 SMs; at most four an SM",
           {"split_k": 32}, replace(FEW, k=8192)),
    Breach("skinny", "split_k", r"split_k=16 needs \d+ bytes of float32 partials; at most "
           "1073741824", {"split_k": 16}, replace(FEW, batch=512)),
    Breach("skinny", "grid", "k=2147483640 and a tile's side of 256 .* Cut the problem along k",
           problem=replace(FEW, k=2**31 - 8)),
    Breach("skinny", "grid", "a grid has at most 2147483647 programs",
           problem=replace(FEW, n=2**30, batch=2**10)),
    Breach("tiled", "shared_memory", "sm_80 allows 166912", {"num_stages": 6}, arch=80),
)
#: No shipped device is older than the rule allows.
OLD = replace(representative(80), name="Tesla V100", arch=70)


@pytest.mark.parametrize("kernel", SPECS)
def test_the_configs_that_cases_depart_from_are_legal(kernel):
    assert violation(PROBLEMS_OF.get(kernel, SQUARE), LEGAL[kernel], H200) is None


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_a_rule_says_what_is_wrong(breach: Breach):
    config = replace(LEGAL[breach.kernel], **breach.changes)
    found = violation(breach.of, config, representative(breach.arch))
    assert found is not None and found.rule == breach.rule, found
    assert re.search(breach.says, found.message), found.message
    require = functools.partial(SPECS[breach.kernel].require, breach.of, config,
                                representative(breach.arch))
    if breach.rule == WASTE:
        require()  # it would run, only slowly
        return
    with pytest.raises(ConstraintError, match=f"breaks the rule '{breach.rule}'"):
        require()


def test_a_long_split_of_swapped_operands_counts_the_tiles_of_the_transposed_product():
    long = GemmProblem.contiguous(16, 512, 32768, layout="nt")
    config = SPECS["warp_specialized"].default(long, H200)
    assert (config.swap_ab, config.split_k) == (1, 32)  # 8 tiles, 256 units
    assert violation(long, config, H200) is None
    column = GemmProblem.contiguous(256, 1, 8192, layout="nt")
    for config in (replace(LEGAL["gemv"], block_m=1, num_stages=2),
                   replace(LEGAL["skinny"], block_m=8)):
        config = replace(config, split_k=32, swap_ab=1)
        assert violation(column, config, H200) is None  # 16 tiles, 512 units


def test_what_all_warps_add_up_must_fit_shared_memory():
    config = replace(LEGAL["skinny"], block_n=32, num_warps=8)
    for room, fits in ((4 * 8 * 16 * 32, False), (4 * 8 * 16 * 32 + 128, True)):
        found = violation(FEW, config, replace(H200, shared_bytes_per_block=room))
        assert (found is None) is fits and (fits or found.rule == "shared_memory")
    split = replace(LEGAL["skinny"], block_n=16, num_warps=1, block_k=64, split_k=2)
    assert shared_bytes(FEW, split) > shared_bytes(FEW, replace(split, split_k=1))


@pytest.mark.parametrize("kernel", ("warp_specialized", "skinny", *SCRATCH_PARTS))
def test_gluon_kernels_are_not_for_the_interpreter(kernel):
    found = violation(PROBLEMS_OF.get(kernel, SQUARE), LEGAL[kernel], interpreter_device())
    assert found.rule == "interpreter" and "have no interpreter" in found.message


@pytest.mark.parametrize("kernel", ("tiled", "tiled_bf16x6", "gemv"))
def test_pointer_kernels_need_ampere(kernel):
    found = violation(PROBLEMS_OF.get(kernel, SQUARE), LEGAL[kernel], OLD)
    assert found.rule == "arch" and found.message == "needs sm_80 or later; Tesla V100 is sm_70"


def test_every_rule_of_every_kernel_has_a_case():
    rules = {(name, c.rule) for name, spec in SPECS.items() for c in spec.constraints}
    assert rules - {(b.kernel, b.rule) for b in BREACHES} == {
        ("tiled", "arch"), ("tiled_bf16x6", "arch"), ("gemv", "arch"),
        ("skinny", "shared_memory"),
        ("simt", "arch"),
        *((kernel, rule) for kernel in ("warp_specialized", "skinny", "simt", *SCRATCH_PARTS)
          for rule in ("interpreter", "gluon"))}


def test_an_unknown_kernel_is_a_violation_and_its_spec_an_error():
    config = replace(LEGAL["tiled"], kernel="nonsense")
    assert violation(SQUARE, config, H200).rule == "kernel"
    with pytest.raises(ConfigError, match="'nonsense' is not known; known: "):
        spec_named("nonsense")


def extents():
    return st.one_of(st.integers(0, 300), st.integers(0, 2**31 - 1))


DTYPES = st.sampled_from(("bf16", "fp16", "fp32", "fp64"))
ALIGNS = st.sampled_from((1, 2, 4, 8, 16))
PROBLEMS = st.builds(
    GemmProblem, extents(), extents(), extents(), st.integers(0, 5), DTYPES, DTYPES, DTYPES,
    st.sampled_from(LAYOUTS), ALIGNS, ALIGNS, ALIGNS, st.sampled_from(("none", "relu")))
BLOCKS = st.one_of(st.sampled_from((16, 32, 64, 128, 256)), st.integers(1, 65536))
CONFIGS = st.builds(
    KernelConfig, st.sampled_from(tuple(SPECS)), BLOCKS, BLOCKS, BLOCKS,
    num_warps=st.integers(1, 64), num_stages=st.integers(1, 16), group_m=st.integers(1, 64),
    split_k=st.integers(1, 64), epilogue_subtile=st.integers(1, 8), pingpong=st.integers(0, 2),
    swap_ab=st.integers(0, 2), pad_operands=st.integers(0, 2))
DEVICES = st.sampled_from([representative(arch) for arch in (80, 89, 90, 100)])


@given(PROBLEMS, CONFIGS, DEVICES)
def test_any_config_is_legal_or_says_why_not(problem, config, device: DeviceSpec):
    spec, found = SPECS[config.kernel], violation(problem, config, device)
    if found is None:
        assert shared_bytes(problem, config) <= device.shared_bytes_per_block
        assert spec.supports(problem, device) is None
        spec.require(problem, config, device)
    else:
        assert found.rule in {*TAKES, *(c.rule for c in spec.constraints)}
        assert len(found.message) > 10


@given(PROBLEMS, CONFIGS, DEVICES)
def test_what_a_kernel_does_not_support_no_config_of_it_can_do(problem, config, device):
    if SPECS[config.kernel].supports(problem, device) is not None:
        assert violation(problem, config, device) is not None


@pytest.mark.parametrize(("split", "legal"), [(1, True), (2, False)])
def test_copies_and_the_parts_of_a_split_k_share_the_limit_of_scratch(split, legal):
    problem = GemmProblem.contiguous(11000, 11000, 8001)  # parts of 968 MB, copies of 354 MB
    config = KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=3,
                          split_k=split, pad_operands=1)
    assert (violation(problem, config, representative(90)) is None) == legal


@pytest.mark.parametrize(("block_n", "subtile", "legal"), [
    (16, 1, True), (32, 2, False), (64, 2, True), (64, 4, False), (128, 4, True)])
def test_pieces_of_a_tile_have_32_columns_and_a_whole_one_may_have_fewer(block_n, subtile, legal):
    config = KernelConfig("warp_specialized", 64, block_n, 64, num_stages=4,
                          epilogue_subtile=subtile)
    problem = GemmProblem.contiguous(1024, block_n, 1024, layout="nt")
    assert (violation(problem, config, representative(90)) is None) == legal
