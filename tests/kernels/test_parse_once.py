"""Triton parses each device function once. That it leaves the trees as they are is looked at where
every kernel is compiled, with each version of Triton (``tests/compile/versions_sample.py``)."""

from __future__ import annotations

import ast
import importlib

import pytest

pytest.importorskip("triton", reason="it is Triton that parses")

from tritongemm.kernels.parse_once import jit_functions, parse_once

PACKAGE = "tritongemm.kernels.device"


def test_each_function_keeps_the_tree_of_its_own_source():
    order = importlib.import_module(f"{PACKAGE}.order")
    parse_once(PACKAGE)
    parse_once(PACKAGE)
    tree = order.tile_of.parse()
    assert order.tile_of.parse() is tree and order.gluon_tile_of.parse() is not tree
    for function in jit_functions(PACKAGE):
        assert ast.dump(function.parse()) == ast.dump(ast.parse(function.src))


def test_functions_of_other_packages_stay_as_they_are(monkeypatch):
    from triton.language import cdiv

    monkeypatch.setattr(importlib.import_module(f"{PACKAGE}.order"), "cdiv", cdiv, raising=False)
    parse_once(PACKAGE)
    assert cdiv.parse() is not cdiv.parse()


def test_a_triton_that_does_not_parse_is_left_alone(monkeypatch):
    import triton

    module = importlib.import_module(f"{PACKAGE}.order")

    class Function:
        fn = module.tile_of.fn

    function = Function()
    monkeypatch.setattr(triton, "JITFunction", Function)
    monkeypatch.setattr(module, "other", function, raising=False)
    parse_once(PACKAGE)
    assert list(jit_functions(PACKAGE)) == [function] and not vars(function)
