"""``torch.compile`` with products and their epilogues fused: see
:mod:`tritongemm.integration.inductor`.

    from tritongemm import inductor

    model = torch.compile(model, options=inductor.options())
    with inductor.enable():
        ...
"""

from tritongemm.integration.inductor import FusePass, disable, enable, options

__all__ = ["FusePass", "disable", "enable", "options"]
