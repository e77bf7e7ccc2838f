"""A physics-informed network in float32: the Schroedinger equation, derivatives by autograd."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tritongemm.models.program import Made, Program, Sizes


class Schroedinger(nn.Module):
    """points [count, 2] (x, t) -> the mean square residual of i h_t + h_xx / 2 + |h|^2 h = 0.

    Raissi, Perdikaris and Karniadakis, Physics-informed neural networks, 2019: h = u + i v by a
    tanh network of 5 layers of 100, at 20,000 points.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [2, *[sizes["width"]] * (sizes["layers"] - 1), 2]
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))

    def _h(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.stack((x, t), -1)
        for linear in self.linears[:-1]:
            y = torch.tanh(linear(y))
        y = self.linears[-1](y)
        return y[:, 0], y[:, 1]

    def forward(self, points: Tensor) -> Tensor:
        with torch.enable_grad():
            x, t = (points[:, i].detach().requires_grad_() for i in (0, 1))
            parts = self._h(x, t)
            slopes = [torch.autograd.grad(part.sum(), (x, t), create_graph=True)
                      for part in parts]
            u_xx, v_xx = (torch.autograd.grad(slope[0].sum(), x, create_graph=True)[0]
                          for slope in slopes)
            u, v = parts
            size = u.square() + v.square()
            real = -slopes[1][1] + u_xx / 2 + size * u
            imaginary = slopes[0][1] + v_xx / 2 + size * v
            return (real.square() + imaginary.square()).mean()


def make(sizes: Sizes) -> Made:
    """Random points of x in [-5, 5] and t in [0, pi / 2]."""
    points = torch.rand(sizes["points"], 2) * torch.tensor([10.0, 1.5708]) - torch.tensor(
        [5.0, 0.0])
    return Made(Schroedinger(sizes), (points,))


PROGRAMS = (Program(
    "pinn-schroedinger", "a physics-informed network in float32, 5 layers of 100, 20,000 points "
    "(Raissi et al., 2019)", dict(layers=5, width=100, points=20_000),
    dict(layers=3, width=12, points=20), make, training=True, dtype="fp32",
    # torch.compile has no second derivatives.
    modes=("eager", "graph")),)
