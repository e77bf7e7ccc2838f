"""What a package that adds a kernel and a format has its users name in TRITONGEMM_PLUGINS."""

from fence import FORMAT, NAME, OUTSIDER

from tritongemm.formats import register_format
from tritongemm.kernels import SPECS

register_format(FORMAT)
SPECS[NAME] = OUTSIDER
