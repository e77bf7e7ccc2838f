"""One program on a device: its step in eager mode, compiled and captured, and a reset of its
weights."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from tritongemm.models.program import Program, Sizes

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
#: Learning rate of AdamW: small and constant, so that losses do not jump within a few steps.
LEARNING_RATE = 1e-5


class Stepper:
    """The program's module, inputs and optimizer.

    Args:
        device: torch's name of the device.
        seed: seed of weights and inputs.
    """

    def __init__(self, program: Program, sizes: Sizes, device: str, seed: int) -> None:
        self.program, self.device = program, device
        torch.manual_seed(seed)
        with torch.device(device):
            made = program.make(sizes)
        dtype = _DTYPES[program.dtype]
        self.model = made.model.to(device, dtype).train(program.training)
        if not program.training:
            self.model.requires_grad_(False)
        self.inputs = tuple(x.to(device, dtype if x.is_floating_point() else x.dtype)
                            for x in made.inputs)
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self._initial = [p.detach().clone() for p in self._trained]
        self._optimizer = self._new_optimizer(capturable=False)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def _new_optimizer(self, capturable: bool) -> torch.optim.Optimizer | None:
        if not self._trained:
            return None
        return torch.optim.AdamW(self._trained, LEARNING_RATE, capturable=capturable,
                                 fused=self.device.startswith("cuda"))

    def eager(self) -> object:
        """One step as the program is written; its loss or output."""
        return self._step(self.model)

    def step(self, mode: str, *, ours: bool) -> Callable[[], object]:
        """A step of ``mode``, as a function that returns the loss or the output.

        In mode ``fused`` only ``ours`` uses the graph pass; torch compiles without it.
        """
        if mode == "eager":
            return self.eager
        options = None
        if mode == "fused" and ours:
            from tritongemm import inductor

            options = inductor.options()
        if self.device.startswith("cuda"):
            forward = torch.compile(self.model, dynamic=False, options=options)
        elif options:
            from tritongemm.integration.inductor import backend_without_codegen

            forward = torch.compile(self.model, dynamic=False,
                                    backend=backend_without_codegen())
        else:  # tracing and differentiation need no compiler for the CPU
            forward = torch.compile(self.model, dynamic=False, backend="aot_eager")
        return lambda: self._step(forward)

    def _step(self, forward: Callable[..., object]) -> object:
        if not self.program.training:
            with torch.no_grad():
                return forward(*self.inputs)
        self._optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        with self._autocast():
            loss = forward(*self.inputs)
        loss.backward()  # type: ignore[attr-defined]
        self._optimizer.step()  # type: ignore[union-attr]
        return loss.detach()  # type: ignore[attr-defined]

    def _autocast(self) -> AbstractContextManager[object]:
        if not self.program.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device.partition(":")[0], torch.bfloat16)

    def captured(self, warm: int) -> tuple[Callable[[], object], Callable[[], Tensor]]:
        """A whole step in a CUDA graph, after ``warm`` steps: (replay, replay and result).

        All graphs share one optimizer, whose state is on the device.
        """
        if self._trained and not self._optimizer.defaults["capturable"]:  # type: ignore
            self._optimizer = self._new_optimizer(capturable=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm):
                self.eager()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Freed together: see measure/graph.py on cuBLAS workspaces.
        self._graphs.append(graph)
        with torch.cuda.graph(graph):
            result = self.eager()

        def read() -> Tensor:
            graph.replay()
            return result  # type: ignore[return-value]
        return graph.replay, read

    def reset(self) -> None:
        """Resets weights and optimizer in place, because graphs hold their addresses."""
        with torch.no_grad():
            for parameter, first in zip(self._trained, self._initial):
                parameter.copy_(first)
        if self._optimizer is None:
            return
        for state in self._optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def reference(self) -> object:
        """The output in float64."""
        model = copy.deepcopy(self.model).double()
        inputs = [x.double() if x.is_floating_point() else x for x in self.inputs]
        with torch.no_grad():
            return model(*inputs)

    def forget(self) -> None:
        """Drops compiled code and graphs, and an optimizer made for graphs."""
        torch._dynamo.reset()
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._optimizer = self._new_optimizer(capturable=False)
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()
