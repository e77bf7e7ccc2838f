"""The README's chart and headline table, made from the committed CSVs.

    python docs/_tools/headline.py            # writes docs/images/speedup.svg and both tables
    python docs/_tools/headline.py --check    # exits with 1 where a file would change
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import svg  # noqa: E402

from tritongemm.report import aggregate, tables  # noqa: E402
from tritongemm.report.load import Results, load  # noqa: E402
from tritongemm.report.markdown import write_between  # noqa: E402

#: Suite -> (label of the chart, what its shapes are). The order is that of the table.
FAMILIES = {
    "llm_prefill": ("LLM layers, 128+ tokens", "linear layers of public models, 128 to 8,192 "
                                               "tokens"),
    "llm_decode": ("LLM layers, 1 to 64 tokens", "the same layers, 1 to 64 tokens"),
    "training": ("LLM gradients", "gradients of the inputs and the weights of these layers"),
    "batched": ("Batched attention", "attention scores and values; other batches"),
    "square": ("Square", "M = N = K, 256 to 16,384"),
    "wide_k": ("8192 x 8192, growing K", "8192 x 8192 outputs, K growing"),
    "split_k": ("Few outputs, long K", "few output tiles, long K"),
    "aligned_random": ("Random, multiples of 16", "random extents, multiples of 16"),
    "deepbench": ("DeepBench", "Baidu DeepBench, training and inference"),
    "sources": ("Sizes from tutorials", "sizes of published GEMM tutorials"),
    "odd": ("Odd sizes", "primes, and powers of two plus or minus one"),
    "stream_k": ("Random, any integer", "random extents, any integer, as in the Stream-K paper"),
}
RESULTS = ROOT / "perf" / "results"
#: Device -> (name, colour, its CSVs). All rows are bf16; the layout is nt, or the suite's own.
DEVICES = {
    "nvidia-h200": ("H200", svg.BLUE, ("bf16-nt.csv", "bf16-suites.csv")),
    "nvidia-h100-80gb-hbm3": ("H100", svg.ORANGE, ("bf16-nt.csv", "bf16-layouts.csv")),
}
#: Suites that are measured in their own layouts; the others count in nt.
OWN_LAYOUT = ("training", "batched")


def summaries() -> tuple[dict[str, dict[str, dict]], dict[str, Results]]:
    """Device -> suite -> one row of :func:`tritongemm.report.aggregate.summary`; and the rows."""
    found, results = {}, {}
    for device, (_, _, files) in DEVICES.items():
        loaded = load([RESULTS / device / name for name in files])
        rows = loaded.headline
        kept = rows["suite"].isin(OWN_LAYOUT) | (rows["layout"] == "nt")
        frame = aggregate.summary(rows[kept & rows["suite"].isin(list(FAMILIES))], by=("suite",))
        found[device] = {row["suite"]: row for row in frame.to_dict("records")}
        results[device] = loaded
    return found, results


def software(results: dict[str, Results]) -> str:
    """The versions that the sidecars of all these runs name. Raises if the devices differ."""
    lines = {next(line for line in tables.facts(r) if line.startswith("Software: "))
             for r in results.values()}
    if len(lines) != 1:
        raise SystemExit(f"the devices' runs name different software: {sorted(lines)}")
    return lines.pop().removeprefix("Software: ").removesuffix(".")


def chart(found: dict[str, dict[str, dict]], versions: str) -> str:
    """The bar chart of median speed-ups."""
    series = [(name, colour, [found[device].get(suite, {}).get("median") for suite in FAMILIES])
              for device, (name, colour, _) in DEVICES.items()]
    return svg.bars(
        "Median speed-up over torch.matmul, bf16",
        ["torch's time / tritongemm's time on the GPU; torch uses the faster of cuBLAS and "
         "cuBLASLt. Cold L2.",
         f"NVIDIA H200 141 GB and H100 SXM 80 GB; {versions}.",
         "cuBLASLt with every candidate timed (autotuned) is not in the committed CSVs."],
        [label for label, _ in FAMILIES.values()], series, unit="x", reference=1.0,
        reference_label="torch.matmul")


def table(found: dict[str, dict[str, dict]], root: str = "") -> str:
    """The Markdown table of both devices."""
    lines = ["| suite | shapes are | count | H200 median | lowest | highest | slower than torch "
             "| H100 median | lowest |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    h200, h100 = (found[device] for device in DEVICES)
    for suite, (_, meaning) in FAMILIES.items():
        one, other = h200[suite], h100[suite]
        lines.append(f"| `{suite}` | {meaning} | {one['timed']} | {one['median']:.2f} | "
                     f"{one['min']:.2f} | {one['max']:.2f} | {one['slower']} | "
                     f"{other['median']:.2f} | {other['min']:.2f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    args = parser.parse_args()
    found, results = summaries()
    drawing = chart(found, software(results))
    image = ROOT / "docs" / "images" / "speedup.svg"
    pages = [ROOT / "README.md", ROOT / "docs" / "index.md"]
    if args.check:
        stale = [path for path in pages if table(found) not in path.read_text(encoding="utf-8")]
        stale += [image] if not image.exists() or image.read_text() != drawing else []
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)}; run python docs/_tools/headline.py")
        return 1 if stale else 0
    image.write_text(drawing, encoding="utf-8")
    for path in pages:
        write_between(path, "headline", table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
