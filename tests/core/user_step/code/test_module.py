"""The source of a module is read into its definitions."""

import ast

from batchmill.core.user_step.code.module import read_module


def test_a_module_is_read_again_if_another_thread_disturbed_the_parser(monkeypatch):
    parse, faults = ast.parse, [SystemError("AST constructor recursion depth mismatch")]

    def disturbed(text):
        if faults:
            raise faults.pop()
        return parse(text)

    monkeypatch.setattr(ast, "parse", disturbed)
    code = read_module(b"def f(): pass\n", "m", is_package=False, is_users=lambda name: False)
    assert [*code.definitions] == ["f"]
