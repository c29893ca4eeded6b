"""Test that the text of a syntax tree depends on the code alone, not on the version of Python."""

import ast

from batchmill.core.digests import digest
from batchmill.core.user_step.code.syntax import dump

SAMPLE = r'''
"""A docstring."""
from __future__ import annotations
import os.path as p, sys
from . import a as b

X: int = 3
Y = {"a": 1, **{}, None: ...}, {1, 2.5, 1j}, b"\x00", u"\u0378 \U0001fae8", -1, True
TEXT = f"{X!r:>{X}} {X=}" "tail" f"" f"{'nested' + str(X):{X}.{X}}"

@decorate(1, *a, **b)
class A(Base, metaclass=Meta):
    """A docstring."""
    x: str

    async def f(self, a, /, b=1, *args: int, c, d=2, **more) -> str:
        """A docstring."""
        global X
        async with a as b, c:
            await d
        async for e in f:
            yield (yield from g) if h else lambda i, *j: i
        try:
            pass
        except* (E, F) as error:
            raise G from error
        else:
            del a[1:2, ::3]
        finally:
            assert (n := 3), "text"

def f():
    match x:
        case {"a": 1, **rest} | [_, *others] | A(b, c=None) as d if e:
            return [i async for i in j if k for l in m]
    while True:
        nonlocal_ += ~a @ b // c
        break
'''


def test_the_text_is_the_same_in_each_version_of_python():
    # CI runs this test with each version.
    assert digest("code", dump(ast.parse(SAMPLE))) == "3e82b9c65da0bad8"


def test_parts_without_effect_are_left_out():
    tree = "def f():\n    'Text.'\n    ...\n    if a:\n        pass\n    return 1"
    assert dump(ast.parse(tree)) == dump(ast.parse("def f():\n    if a: 3\n    return 1 # !"))
    assert dump(ast.parse("x = 'Text.'")) != dump(ast.parse("x = 'Other.'"))
