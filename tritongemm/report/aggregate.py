"""Statistics of rows: geometric means, extremes, counts, ties, fallbacks, failures, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritongemm.records.control import BASELINE, CONTROL, control_limit
from tritongemm.report.load import is_contender

if TYPE_CHECKING:
    import pandas as pd

#: The columns that define one line of the summary.
GROUP = ("device", "suite", "dtype", "layout", "provider")
SUMMARY_COLUMNS = ("rows", "timed", "geomean", "median", "min", "min_at", "max", "max_at",
                   "faster", "tie", "slower", "failed", "fallback", "of_roof_pct", "worst_error")


def summary(headline: pd.DataFrame, by: Sequence[str] = GROUP) -> pd.DataFrame:
    """One line for each group of providers' rows, without torch and the torch control.

    Besides ``by`` the columns are ``rows``; ``timed`` (status ok, with a ratio); ``geomean,
    median, min, max`` of torch time / provider time over the timed rows, and the problems
    ``min_at, max_at``; ``faster, tie, slower``, where the 95 % interval lies above, around or
    below 1; ``failed``, rows whose status is not ok, which no mean includes; ``fallback``, rows
    that torch computed; ``of_roof_pct``, the median share of the roofline in per cent;
    ``worst_error``, the largest error divided by its limit.
    """
    import numpy as np
    import pandas as pd

    by = list(by)
    rows = headline[is_contender(headline)]
    if rows.empty:
        return pd.DataFrame(columns=[*by, *SUMMARY_COLUMNS])
    ok = rows["status"] == "ok"
    ratio = rows["ratio_vs_torch"].where(ok)
    low, high = rows["ratio_low"].where(ok), rows["ratio_high"].where(ok)
    work = rows[by].copy()
    work["rows"] = 1
    work["timed"] = ratio.notna()
    work["log"] = np.log(ratio)
    work["ratio"] = ratio
    work["faster"] = low > 1
    work["slower"] = high < 1
    work["tie"] = (low <= 1) & (high >= 1)
    work["failed"] = ~ok
    work["fallback"] = ok & (rows["selection_source"] == BASELINE)
    work["roof"] = rows["pct_of_roof"].where(ok)
    work["error"] = rows["max_err_ratio"]
    groups = work.groupby(by, sort=True, dropna=False, observed=True)
    table = groups.agg(rows=("rows", "size"), timed=("timed", "sum"), geomean=("log", "mean"),
                       median=("ratio", "median"), min=("ratio", "min"), max=("ratio", "max"),
                       faster=("faster", "sum"), tie=("tie", "sum"), slower=("slower", "sum"),
                       failed=("failed", "sum"), fallback=("fallback", "sum"),
                       of_roof_pct=("roof", "median"), worst_error=("error", "max"))
    table["geomean"] = np.exp(table["geomean"])
    for name, ascending in (("min_at", True), ("max_at", False)):
        ends = work[ratio.notna()].sort_values("ratio", ascending=ascending, kind="stable")
        first = ends.drop_duplicates(by, keep="first")
        place = rows.loc[first.index, "problem"].to_numpy()
        at = pd.Series(place, index=pd.MultiIndex.from_frame(first[by]), dtype=object)
        if len(by) == 1:
            at.index = at.index.get_level_values(0)
        table[name] = at.reindex(table.index).fillna("")
    return _as_texts(table.reset_index()[[*by, *SUMMARY_COLUMNS]], by)


def correctness(headline: pd.DataFrame) -> pd.DataFrame:
    """One line for each group: ``checked`` rows, ``wrong`` results, ``other`` failures, largest
    error ratios.

    An error ratio is the error divided by its limit. Torch is left out; rows without a time
    count too.
    """
    import pandas as pd

    by = list(GROUP)
    columns = [*by, "rows", "checked", "wrong", "other", "max_err_ratio", "rms_err_ratio"]
    rows = headline[is_contender(headline)]
    if rows.empty:
        return pd.DataFrame(columns=columns)
    work = rows[[*by, "max_err_ratio", "rms_err_ratio"]].copy()
    work["checked"] = rows["max_err_ratio"].notna() | (rows["status"] == "wrong")
    work["wrong"] = rows["status"] == "wrong"
    work["other"] = ~rows["status"].isin(["ok", "wrong"])
    table = work.groupby(by, sort=True, dropna=False, observed=True).agg(
        rows=("checked", "size"), checked=("checked", "sum"), wrong=("wrong", "sum"),
        other=("other", "sum"), max_err_ratio=("max_err_ratio", "max"),
        rms_err_ratio=("rms_err_ratio", "max"))
    return _as_texts(table.reset_index()[columns], by)


def _as_texts(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """``table`` with plain texts, not categories, in ``names``."""
    return table.astype({name: object for name in names})


def failures(headline: pd.DataFrame) -> pd.DataFrame:
    """Every row whose status is not ok, torch's included, in file order."""
    return headline[headline["status"] != "ok"]


def slowest(headline: pd.DataFrame, count: int) -> pd.DataFrame:
    """The ``count`` rows of contenders with the lowest ratio to torch, lowest first."""
    rows = headline[is_contender(headline) & (headline["status"] == "ok")]
    return rows[rows["ratio_vs_torch"].notna()].nsmallest(count, "ratio_vs_torch", keep="first")


def control(rows: pd.DataFrame) -> pd.DataFrame:
    """The torch control (torch against torch), one line for each run: ``rows``, ``mean``, the
    ``limit`` of its timers, and whether ``mean`` is ``within`` 1 +- ``limit``."""
    import pandas as pd

    columns = ["run_id", "rows", "mean", "limit", "within"]
    ran = rows[(rows["provider"] == CONTROL) & (rows["status"] == "ok")
               & rows["ratio_vs_torch"].notna()]
    if ran.empty:
        return pd.DataFrame(columns=columns)
    runs = _as_texts(ran[["run_id", "ratio_vs_torch", "timer"]], ["run_id", "timer"]).groupby(
        "run_id", sort=True)
    table = runs.agg(rows=("ratio_vs_torch", "size"), mean=("ratio_vs_torch", "mean"),
                     limit=("timer", control_limit)).reset_index()
    table["within"] = (table["mean"] - 1).abs() <= table["limit"]
    return table[columns]


def energy(headline: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each group of the headline's rows with the energy of a call, of which ``rows``
    has torch's of the same run: ``rows``; ``geomean, min, max`` of torch's energy / the provider's,
    and the problem ``min_at``; ``energy_mj``, the median of the provider's calls."""
    import numpy as np
    import pandas as pd

    by = list(GROUP)
    columns = [*by, "rows", "geomean", "min", "min_at", "max", "energy_mj"]
    known = [frame[(frame["status"] == "ok") & (frame["energy_mj"] > 0)]
             for frame in (headline, rows)]
    same = ["run_id", "device", "suite", "dtype", "layout", "epilogue", "problem"]
    torchs = known[1][known[1]["provider"] == BASELINE]
    work = known[0][is_contender(known[0])].merge(
        torchs[[*same, "energy_mj"]].drop_duplicates(same), on=same, suffixes=("", "_torch"))
    if work.empty:
        return pd.DataFrame(columns=columns)
    work["ratio"] = work["energy_mj_torch"] / work["energy_mj"]
    work["log"] = np.log(work["ratio"])
    work = _as_texts(work, [*by, "problem"]).sort_values("ratio", kind="stable")
    table = work.groupby(by, sort=True).agg(
        rows=("ratio", "size"), geomean=("log", "mean"), min=("ratio", "first"),
        min_at=("problem", "first"), max=("ratio", "last"), energy_mj=("energy_mj", "median"))
    table["geomean"] = np.exp(table["geomean"])
    return table.reset_index()[columns]


def rivals(headline: pd.DataFrame, one: str) -> pd.DataFrame:
    """How provider ``one`` stands against each other provider, torch too, on the problems that both
    timed: a line for each group and other provider, with ``rows``; ``geomean, min, max`` of the
    other's time / that of ``one``, and the problem ``min_at``; ``behind``, the problems for which
    the other is the faster; and ``fastest``, those for which it is the fastest of all."""
    import numpy as np
    import pandas as pd

    by = list(GROUP)
    columns = [*by, "rows", "geomean", "min", "min_at", "max", "behind", "fastest"]
    timed = headline[(headline["status"] == "ok") & headline["ratio_vs_torch"].notna()
                     & (headline["provider"] != CONTROL)]
    problem = ["device", "suite", "dtype", "layout", "epilogue", "problem"]
    work = _as_texts(timed[[*problem, "provider", "ratio_vs_torch"]], [*problem, "provider"])
    work = work.drop_duplicates([*problem, "provider"], keep="last")
    work["fastest"] = work["ratio_vs_torch"] == work.groupby(problem)["ratio_vs_torch"].transform(
        "max")
    ours = work[work["provider"] == one][[*problem, "ratio_vs_torch"]]
    work = work[work["provider"] != one].merge(ours, on=problem, suffixes=("", "_one"))
    if work.empty:
        return pd.DataFrame(columns=columns)
    work["ratio"] = work["ratio_vs_torch_one"] / work["ratio_vs_torch"]
    work["log"], work["behind"] = np.log(work["ratio"]), work["ratio"] < 1
    table = work.sort_values("ratio", kind="stable").groupby(by, sort=True).agg(
        rows=("ratio", "size"), geomean=("log", "mean"), min=("ratio", "first"),
        min_at=("problem", "first"), max=("ratio", "last"), behind=("behind", "sum"),
        fastest=("fastest", "sum"))
    table["geomean"] = np.exp(table["geomean"])
    return table.reset_index()[columns]


def sources(headline: pd.DataFrame) -> pd.DataFrame:
    """The number of rows of each provider and ``selection_source``."""
    rows = headline[is_contender(headline) & (headline["selection_source"] != "")]
    by = ["provider", "selection_source"]
    counts = rows.groupby(by, sort=True, observed=True).size()
    return _as_texts(counts.reset_index(name="rows"), by)


def conditions(headline: pd.DataFrame) -> dict[str, list[str]]:
    """The timers, L2 states and torch back ends of the timed rows."""
    timed = headline[headline["time_us_p50"].notna()]
    return {name: sorted(v for v in timed[name].unique() if v)
            for name in ("timer", "l2_state", "torch_backend")}
