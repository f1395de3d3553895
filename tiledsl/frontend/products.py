"""Contraction: within one statement ``a * b + c``, ``a * b - c``, ``c - a * b`` and ``c += a * b`` on
floats are one fma. Nothing else contracts. Of ``a * b + c * d`` the left product is the fused one."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from tiledsl.frontend.arithmetic import apply, binary, common_dtype, unify
from tiledsl.frontend.bindings import is_register
from tiledsl.frontend.frame import Frame, evaluate
from tiledsl.ir.core import Value

_SUMS = (ast.Add, ast.Sub)


@dataclass(frozen=True)
class _Product:
    """An unevaluated ``a * b`` of floats, at least one of them a run-time value."""

    a: Any
    b: Any
    node: ast.AST


def _operand(node: ast.expr, frame: Frame) -> Any:
    """The operand's binding, or a `_Product` if it is written as one that may be fused."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return evaluate(node, frame)
    return _product(evaluate(node.left, frame), evaluate(node.right, frame), frame, node)


def _product(a: Any, b: Any, frame: Frame, node: ast.AST) -> Any:
    """``a * b`` where a sum may take it."""
    dtype = common_dtype([a, b], frame, node, "*") if is_register(a) or is_register(b) else None
    if dtype is not None and dtype.is_float:
        return _Product(a, b, node)
    return binary(ast.Mult(), a, b, frame, node)


def _fma(product: _Product, addend: Any, frame: Frame, node: ast.AST, *, negative: bool = False) -> Any:
    """``a * b + addend``, or with the product negated: exact, since negation is."""
    operands, what = [product.a, product.b, addend], "fma (from a * b + c)"
    dtype = common_dtype(operands, frame, node, what)
    assert dtype is not None
    a, b, c = unify(operands, dtype, frame, node)
    factor = apply("neg", [a], frame, node, "-") if negative else a
    return apply("fma", [factor, b, c], frame, node, what)


def _sum(op: ast.operator, left: Any, right: Any, frame: Frame, node: ast.AST) -> Any:
    """``left <op> right`` for + and -, either of which may be a `_Product`."""
    minus = isinstance(op, ast.Sub)
    if isinstance(left, _Product):
        addend = right
        if isinstance(right, _Product):
            addend = apply("mul", [right.a, right.b], frame, right.node, "*")
        if minus and isinstance(addend, Value):
            addend = apply("neg", [addend], frame, node, "-")
        elif minus and isinstance(addend, (int, float)) and not isinstance(addend, bool):
            # -0 for the integer 0 as well: x - 0 and x + 0 differ for x = -0.
            addend = -float(addend)
        return _fma(left, addend, frame, node)
    if isinstance(right, _Product):
        return _fma(right, left, frame, node, negative=minus)
    return binary(op, left, right, frame, node)


@evaluate.register
def _(node: ast.BinOp, frame: Frame) -> Any:
    """Left operands first, without recursion: a sum of 1000 terms is 1000 nodes deep."""
    spine = [node]
    while isinstance(spine[-1].left, ast.BinOp):
        spine.append(spine[-1].left)
    left = evaluate(spine[-1].left, frame)
    for position in range(len(spine) - 1, -1, -1):
        here = spine[position]
        summed = position > 0 and isinstance(spine[position - 1].op, _SUMS)
        if isinstance(here.op, _SUMS):
            left = _sum(here.op, left, _operand(here.right, frame), frame, here)
        elif isinstance(here.op, ast.Mult) and summed:
            left = _product(left, evaluate(here.right, frame), frame, here)
        else:
            left = binary(here.op, left, evaluate(here.right, frame), frame, here)
    return left


def add_product(op: ast.operator, old: Any, value: ast.expr, frame: Frame, node: ast.AST) -> Any:
    """``old <op>= value``."""
    if not isinstance(op, _SUMS) or not is_register(old):
        return binary(op, old, evaluate(value, frame), frame, node)
    return _sum(op, old, _operand(value, frame), frame, node)
