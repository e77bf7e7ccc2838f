"""``python -m tritongemm``."""

import sys

from tritongemm.cli import main

if __name__ == "__main__":
    sys.exit(main())
