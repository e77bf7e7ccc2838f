"""Runs a rung's own .cu text on the CPU, for machines that have a C++ compiler and no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tritongemm.baselines.cuda.compiler import read_source
from tritongemm.baselines.cuda.rungs import CudaRung
from tritongemm.config import KernelConfig

SHIM = Path(__file__).with_name("shim.h")
COMPILER = shutil.which("g++")


def _as_cpp(text: str) -> str:
    """CUDA's two constructs that a macro cannot stand for: dynamic shared memory and PTX."""
    text = re.sub(r"extern __shared__ (?:__align__\(16\) )?float (\w+)\[\];",
                  r"float *\1 = (float *)dynamic_shared;", text)

    def instruction(found: re.Match) -> str:
        ptx = found.group(1)
        if "commit_group" in ptx:
            return "emu_commit();"
        if "wait_group" in ptx:
            return "emu_wait" + ptx.partition('"n"')[2] + ";"
        if "ld.shared.v4" in ptx:
            return "emu_read(to, " + ptx.rpartition('"r"(')[2] + ";"
        return f"emu_copy(to, from, {16 if ', 16;' in ptx else 4}, take);"

    return re.sub(r"asm volatile\((.*?)\);\n", lambda f: instruction(f) + "\n", text,
                  flags=re.DOTALL)


def emulate(rung: CudaRung, config: KernelConfig, cases: list[tuple], folder: Path, *,
            aligned: bool, lazy: bool = False,
            source: Path | None = None) -> str:
    """Builds the rung and runs ``cases`` of (m, n, k, alpha, beta); "" or what went wrong."""
    padded = rung.padded(config)
    runs = []
    for m, n, k, alpha, beta in cases:
        gm, gn, gk = ((-(-e // t) * t for e, t in ((m, config.block_m), (n, config.block_n),
                                                   (k, config.block_k))) if padded else (m, n, k))
        gx, gy = rung.grid(config, gm, gn)
        runs.append(f"ok &= run({m}, {n}, {k}, {alpha}f, {beta}f, {gm}, {gn}, {gk}, {gx}, {gy}, "
                    f"{rung.dynamic(config, k)});")
    bx, by = rung.block(config)
    program = f"""
#define LAZY {int(lazy)}
#include "{SHIM}"
{"".join(f"#define {k} {v}{chr(10)}" for k, v in rung.macros(config, aligned).items())}
{_as_cpp(read_source(source or rung.source))}
#undef BM
#undef BN
#define BM 8
#define BN 32
{_as_cpp(read_source(rung.source.with_name("pad.cu")))}
static int m, n, k, gm, gn, gk; static float al, be;
static float *pa, *pb, *pc, *pp, *ga, *gb, *gc;
static bool run(int M, int N, int K, float alpha, float beta, int GM, int GN, int GK, int gx,
                int gy, size_t shared) {{
    Case c(M, N, K, alpha, beta);
    m = M, n = N, k = K, gm = GM, gn = GN, gk = GK, al = alpha, be = beta;
    pa = c.a.data(), pb = c.b.data(), pc = c.c.data();
    if (!{int(padded)}) {{
        ga = pa, gb = pb, gc = pc;
        launch({{gx, gy, 1}}, {{{bx}, {by}, 1}}, shared,
               [] {{ {rung.symbol}(gm, gn, gk, al, ga, gb, be, gc); }});
        return c.right(pc);
    }}
    std::vector<float> a((size_t)GM * GK, NAN), b((size_t)GK * GN, NAN), p((size_t)GM * GN, NAN);
    ga = a.data(), gb = b.data(), gc = p.data();
    if (GK) {{
        launch({{(GK + 31) / 32, 2, 1}}, {{32, 8, 1}}, 0, [] {{ pad(m, k, pa, gm, gk, ga); }});
        launch({{(GN + 31) / 32, 2, 1}}, {{32, 8, 1}}, 0, [] {{ pad(k, n, pb, gk, gn, gb); }});
    }}
    launch({{gx, gy, 1}}, {{{bx}, {by}, 1}}, shared,
           [] {{ {rung.symbol}(gm, gn, gk, al, ga, gb, 0.0f, gc); }});
    launch({{(N + 31) / 32, 2, 1}}, {{32, 8, 1}}, 0, [] {{ unpad(m, n, gn, gc, be, pc); }});
    return c.right(pc);
}}
int main() {{
    bool ok = true;
    {chr(10).join(runs)}
    return !ok;
}}
"""
    written, binary = folder / "rung.cpp", folder / "rung"
    written.write_text(program, encoding="utf-8")
    built = subprocess.run([COMPILER, "-O1", "-w", "-std=c++17", "-fsanitize=address,undefined",
                            "-fno-sanitize=vptr", "-o", binary, written],
                           capture_output=True, text=True)
    if built.returncode:
        return built.stderr[:3000]
    # Fibers switch stacks: leak detection and fake stacks cannot follow.
    done = subprocess.run([binary], capture_output=True, text=True, timeout=600, env={
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "halt_on_error=1"})
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[:3000] or "failed"
