"""Packs sweep journals into one file of columns, e.g. for perf/results/DEVICE/timings/.

    python perf/pack_journals.py OUT.npz JOURNAL...

Keeps run headers, the times of configs and the winners (tritongemm/records/packed.py). `calibrate`,
`regret`, `publish` and `report` read the file as they read journals. Packed files may be among the
journals. The order of the journals is kept: a calibration depends on it in its last digits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tritongemm.errors import DataFileError
from tritongemm.records.journal import read_journal
from tritongemm.records.packed import pack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.npz")
    parser.add_argument("journals", type=Path, nargs="+", metavar="JOURNAL")
    args = parser.parse_args()
    try:
        pack(args.out, ((path.name.split(".")[0], read_journal(path)) for path in args.journals))
    except DataFileError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {args.out}: {args.out.stat().st_size:,} bytes from {len(args.journals)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
