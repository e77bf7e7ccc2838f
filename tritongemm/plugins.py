"""Modules of other packages that register kernels and formats: imported before any work is done.

What one process registers another does not know. So the command line and every worker process
import what TRITONGEMM_PLUGINS names; a program that uses the package as a library may import its
own modules itself.
"""

from __future__ import annotations

import importlib

from tritongemm import settings
from tritongemm.errors import UsageError


def load() -> None:
    """Imports the modules that TRITONGEMM_PLUGINS names, those once that were imported before.

    Raises:
        UsageError: one cannot be imported.
    """
    for name in settings.current().plugins:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"TRITONGEMM_PLUGINS={name}: {error}; name modules that Python can "
                             "import, separated by commas") from error
