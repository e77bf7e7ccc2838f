"""What a product's launch computes beside the product: :class:`Epilogue`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tritongemm import activations
from tritongemm.errors import ProblemError

#: What may be added to the product, or only scale it, and what may be applied to the sum.
ADDENDS = ("none", "scale", "bias", "add")
ACTIVATIONS = tuple(activations.BY_NAME)
#: What the product may be multiplied by: D, or an activation's derivative at D.
FACTORS = ("gain", "mul", *(f"d{name}" for name in ACTIVATIONS[1:]))


@dataclass(frozen=True, slots=True)
class Epilogue:
    """activation(alpha * A @ B + beta * D), computed in float32 before C is rounded; of a factor
    alpha * A @ B * D, or alpha * A @ B * activation'(D).

    Attributes:
        addend: ``none``; ``scale``: alpha alone, no D; ``bias``: D is [N], the same for every row;
            ``add``: D is [batch, M, N]. D has C's dtype; alpha and beta come with each call. Or a
            factor, without an activation after it: ``gain``: D is [N]; ``mul``: D is [batch, M, N];
            ``drelu, dgelu, dgelu_tanh, dsilu``: the derivative at D [batch, M, N], which is what
            ``Activation.gradient`` takes.
        activation: a name of :data:`tritongemm.activations.BY_NAME`.
        gated: B holds two matrices of N / 2 columns, the gate's and the other one's, and C [M, N/2]
            is activation(alpha * A @ B1 + beta * D1) * (alpha * A @ B2 + beta * D2). A bias D has
            both halves. The batch is 1.
        residual: D [batch, M, N] is added after the activation: activation(alpha * A @ B + bias) +
            beta * D. The vector of ``addend`` ``bias`` is then an operand of its own, ``bias``.
        aux: the argument of the activation, [batch, M, N], is a second result, ``aux``, which the
            gradient needs; of a gated epilogue both halves. It has C's dtype.
    """

    addend: str
    activation: str
    gated: bool = False
    residual: bool = False
    aux: bool = False

    @property
    def scales(self) -> bool:
        """Whether it takes alpha."""
        return self.addend != "none" or self.residual

    @property
    def reads_d(self) -> bool:
        """Whether it takes D and beta."""
        return self.residual or self.addend not in ("none", "scale")

    @property
    def d_is_matrix(self) -> bool:
        """Whether D has a value of its own for each of C."""
        return self.residual or self.addend == "add" or self.multiplies and not self.has_vector

    @property
    def has_vector(self) -> bool:
        """Whether it takes a vector of a value for each column."""
        return self.addend in ("bias", "gain")

    @property
    def multiplies(self) -> bool:
        """Whether D is a factor."""
        return self.addend in FACTORS

    @property
    def gradient_of(self) -> str:
        """Of a factor, the activation whose derivative at D it is; ``none``: it is D."""
        return self.addend[1:] if self.multiplies and self.addend[1:] in ACTIVATIONS else "none"

    @property
    def plain(self) -> bool:
        """Whether it is an addend and an activation, or a factor: every kernel with an epilogue
        takes these."""
        return not (self.gated or self.residual or self.aux)

    def __str__(self) -> str:
        words = (self.addend, f"gated_{self.activation}" if self.gated else self.activation,
                 "residual" if self.residual else "none", "aux" if self.aux else "none")
        return "+".join(x for x in words if x != "none") or "none"


def factor_named(gradient_of: str, vector: bool) -> str:
    """The factor that is D, if ``gradient_of`` is ``none``, or that activation's derivative at D.
    ``vector``: D has a value for each column alone."""
    if gradient_of != "none":
        return f"d{gradient_of}"
    return "gain" if vector else "mul"


#: What may be gated: every activation but the identity.
GATES = ACTIVATIONS[1:]


def _epilogues() -> Iterator[Epilogue]:
    yield from (Epilogue(*both) for both in product(ADDENDS, ACTIVATIONS))
    yield from (Epilogue(factor, "none") for factor in FACTORS)
    for addend, activation in product(("none", "bias"), ACTIVATIONS):
        if (addend, activation) != ("none", "none"):  # that is ``add``
            yield Epilogue(addend, activation, residual=True)
        if activation != "none":
            yield Epilogue(addend, activation, aux=True)
            yield Epilogue(addend, activation, gated=True)
            yield Epilogue(addend, activation, gated=True, aux=True)


#: Every epilogue by its name, e.g. ``none, bias, relu, bias+gelu, gated_silu, bias+relu+residual,
#: bias+gelu+aux``.
EPILOGUES = {str(e): e for e in _epilogues()}
#: Those that are an addend and an activation, or a factor.
PLAIN_EPILOGUES = {name: e for name, e in EPILOGUES.items() if e.plain}


def epilogue_of(name: str) -> Epilogue:
    """The :class:`Epilogue` named ``name``. Raises :class:`ProblemError` for an unknown one."""
    try:
        return EPILOGUES[name]
    except (KeyError, TypeError):
        raise ProblemError(
            f"epilogue {name!r} is not known; use none, or one of {', '.join(ADDENDS[1:])}, then "
            f"one of {', '.join(ACTIVATIONS[1:])}, joined by + (bias+gelu), or either alone; "
            "an activation may be gated (bias+gated_silu) or followed by +residual or +aux; or a "
            f"factor, one of {', '.join(FACTORS)}"
        ) from None
