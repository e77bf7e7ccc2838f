"""The README's chart and headline table, made from the committed CSVs.

    python docs/_tools/headline.py            # writes docs/images/speedup.svg, tables and notes
    python docs/_tools/headline.py --check    # exits with 1 where a file would change

A CSV in ``perf/results/DEVICE`` with rows of ``cublaslt-tuned`` beside rows of ``tritongemm``
(``tritongemm bench SUITE --providers torch,tritongemm,cublaslt-tuned``) adds bars, a column and a
note for that device.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import pandas as pd  # noqa: E402
import svg  # noqa: E402

from tritongemm.report import aggregate, tables  # noqa: E402
from tritongemm.report.load import Results, csv_paths, load  # noqa: E402
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
#: Device -> (name, colours of its bars over torch and over autotuned cuBLASLt, its CSVs). All rows
#: are bf16; the layout is nt, or the suite's own.
DEVICES = {
    "nvidia-h200": ("H200", (svg.BLUE, svg.LIGHT_BLUE), ("bf16-nt.csv", "bf16-suites.csv")),
    "nvidia-h100-80gb-hbm3": ("H100", (svg.ORANGE, svg.LIGHT_ORANGE),
                              ("bf16-nt.csv", "bf16-layouts.csv")),
}
#: cuBLASLt with every candidate of its heuristics timed.
AUTOTUNED = "cublaslt-tuned"
OURS = "tritongemm"
#: Suites that are measured in their own layouts; the others count in nt.
OWN_LAYOUT = ("training", "batched")


def summaries() -> tuple[dict[str, dict[str, dict]], dict[str, Results]]:
    """Device -> suite -> one row of :func:`tritongemm.report.aggregate.summary`; and the rows."""
    found, results = {}, {}
    for device, (_, _, files) in DEVICES.items():
        loaded = load([RESULTS / device / name for name in files])
        rows = _of_families(loaded.headline)
        frame = aggregate.summary(rows[rows["provider"] == OURS], by=("suite",))
        found[device] = {row["suite"]: row for row in frame.to_dict("records")}
        results[device] = loaded
    return found, results


def _of_families(rows: pd.DataFrame) -> pd.DataFrame:
    """The bf16 rows of :data:`FAMILIES`, in nt or the suite's own layouts."""
    kept = rows["suite"].isin(OWN_LAYOUT) | (rows["layout"] == "nt")
    return rows[kept & rows["suite"].isin(list(FAMILIES)) & (rows["dtype"] == "bf16")]


def over_autotuned() -> dict[str, dict[str, tuple[float, int]]]:
    """Device -> suite -> (median speed-up over autotuned cuBLASLt, shapes), where it was measured.

    The speed-up of a shape is the quotient of the two providers' ratios to torch, which one run
    measured in the same rounds.
    """
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for device in DEVICES:
        paths, _ = csv_paths([RESULTS / device])
        pairs = []
        for path in paths:
            if AUTOTUNED.encode() not in path.read_bytes():  # faster than parsing every CSV
                continue
            rows = _of_families(load([path]).headline)
            rows = rows[(rows["status"] == "ok") & rows["ratio_vs_torch"].notna()]
            rival = rows[rows["provider"] == AUTOTUNED]
            if rival.empty:
                continue
            key = ["suite", "layout", "problem", "run_id"]
            pairs.append(rows[rows["provider"] == OURS].merge(
                rival, on=key, suffixes=("", "_rival")))
        if not pairs:
            continue
        rows = pd.concat(pairs).drop_duplicates(["suite", "layout", "problem"], keep="last")
        speedup = (rows["ratio_vs_torch"] / rows["ratio_vs_torch_rival"]).groupby(
            rows["suite"].astype(str))
        found[device] = {suite: (float(some.median()), len(some)) for suite, some in speedup}
    return found


def note(tuned: dict[str, dict[str, tuple[float, int]]]) -> str:
    """What the results say about cuBLASLt after autotuning, one sentence."""
    if not tuned:
        return "No committed result compares with cuBLASLt after autotuning."
    measured = "; ".join(f"{DEVICES[device][0]}: {sum(n for _, n in suites.values())} shapes of "
                         + ", ".join(f"`{suite}`" for suite in FAMILIES if suite in suites)
                         for device, suites in tuned.items())
    return ("Autotuned cuBLASLt is cuBLASLt with every candidate of its heuristics timed for each "
            f"shape ({measured}).")


def software(results: dict[str, Results]) -> str:
    """The versions that the sidecars of all these runs name. Raises if the devices differ."""
    lines = {next(line for line in tables.facts(r) if line.startswith("Software: "))
             for r in results.values()}
    if len(lines) != 1:
        raise SystemExit(f"the devices' runs name different software: {sorted(lines)}")
    return lines.pop().removeprefix("Software: ").removesuffix(".")


def chart(found: dict[str, dict[str, dict]], versions: str,
          tuned: dict[str, dict[str, tuple[float, int]]]) -> str:
    """The bar chart of median speed-ups."""
    series = []
    for device, (name, (colour, light), _) in DEVICES.items():
        series.append((name + (", over torch" if tuned else ""), colour,
                       [found[device].get(suite, {}).get("median") for suite in FAMILIES]))
        if device in tuned:
            series.append((f"{name}, over autotuned cuBLASLt", light,
                           [tuned[device].get(suite, (None, 0))[0] for suite in FAMILIES]))
    return svg.bars(
        "Median speed-up over torch.matmul" + (" and autotuned cuBLASLt" if tuned else "")
        + ", bf16",
        ["torch's time / tritongemm's time on the GPU; torch uses the faster of cuBLAS and "
         "cuBLASLt. Cold L2.",
         f"NVIDIA H200 141 GB and H100 SXM 80 GB; {versions}.",
         "Autotuned cuBLASLt: every candidate of its heuristics timed for each shape." if tuned
         else "cuBLASLt with every candidate timed (autotuned) is not in the committed CSVs."],
        [label for label, _ in FAMILIES.values()], series, unit="x", reference=1.0,
        reference_label="1.00: as fast" if tuned else "torch.matmul")


def table(found: dict[str, dict[str, dict]], tuned: dict[str, dict[str, tuple[float, int]]]) -> str:
    """The Markdown table of both devices."""
    head = ("| suite | shapes are | count | H200 median | lowest | highest | slower than torch "
            "| H100 median | lowest |")
    rule = "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for device in tuned:
        head += f" {DEVICES[device][0]} median over autotuned cuBLASLt (shapes) |"
        rule += "---:|"
    lines = [head, rule]
    h200, h100 = (found[device] for device in DEVICES)
    for suite, (_, meaning) in FAMILIES.items():
        one, other = h200[suite], h100[suite]
        row = (f"| `{suite}` | {meaning} | {one['timed']} | {one['median']:.2f} | "
               f"{one['min']:.2f} | {one['max']:.2f} | {one['slower']} | "
               f"{other['median']:.2f} | {other['min']:.2f} |")
        for suites in tuned.values():
            median, count = suites.get(suite, (None, 0))
            row += f" {median:.2f} ({count}) |" if median is not None else "  |"
        lines.append(row)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    args = parser.parse_args()
    found, results = summaries()
    tuned = over_autotuned()
    drawing = chart(found, software(results), tuned)
    image = ROOT / "docs" / "images" / "speedup.svg"
    readme, gaps = ROOT / "README.md", ROOT / "docs" / "gaps.md"
    parts = [(readme, "headline", table(found, tuned)),
             (ROOT / "docs" / "index.md", "headline", table(found, tuned)),
             (readme, "autotuned", note(tuned)), (gaps, "autotuned", note(tuned))]
    if args.check:
        stale = [path for path, name, text in parts
                 if f"<!-- tritongemm:{name} -->\n{text}\n" not in path.read_text("utf-8")]
        stale += [image] if not image.exists() or image.read_text() != drawing else []
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)}; run python docs/_tools/headline.py")
        return 1 if stale else 0
    image.write_text(drawing, encoding="utf-8")
    for path, name, text in parts:
        write_between(path, name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
