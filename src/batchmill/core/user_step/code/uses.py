"""The values that a piece of code uses: names of its module, and attributes of other modules."""

import ast

from batchmill.core.user_step.code.module import (
    ModuleCode,
    Value,
    bound_by_import,
    imported_modules,
)

# They look up names of the module that a syntax tree does not show.
_LOOKUPS = {"globals", "locals", "vars", "exec", "eval"}
_LOOKUP_ATTRIBUTES = {"__subclasses__", "__globals__", "f_globals"}
_IMPORT_CALLS = {"import_module", "__import__"}


class Uses(ast.NodeVisitor):
    """The values and modules that a statement at the top level of a module uses.

    A local variable counts as a use of the module's definition with the same name. So more may
    count than is used, but never less.

    Attributes:
        values: The values, in the order of the code. A use of the whole module is a value without
            attributes.
        modules: The modules that it imports when it is executed.
    """

    def __init__(self, node: ast.stmt, code: ModuleCode) -> None:
        """Find what a statement of the module `code` uses."""
        self.values: list[Value] = []
        self.modules: list[str] = []
        self._code = code
        self._local: dict[str, list[Value]] = {}
        package = code.name if code.is_package else code.name.rpartition(".")[0]
        for part in ast.walk(node):
            if isinstance(part, ast.Import | ast.ImportFrom):
                self.modules += imported_modules(part, package)
                for name, value in bound_by_import(part, package):
                    self._local.setdefault(name, []).append(value)
        self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Add the use of a name."""
        self._use(node.id)

    def visit_Global(self, node: ast.Global) -> None:
        """Add the names of a `global` statement."""
        for name in node.names:
            self._use(name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Add the use of a name with the attributes that follow it."""
        if node.attr in _LOOKUP_ATTRIBUTES:
            self.values.append(Value(self._code.name))
        attributes: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            attributes.insert(0, root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            self._use(root.id, *attributes)
        else:
            self.visit(root)

    def visit_Call(self, node: ast.Call) -> None:
        """Add the module that a call imports by its name."""
        function = getattr(node.func, "attr", getattr(node.func, "id", None))
        if function in _IMPORT_CALLS and node.args:
            name = getattr(node.args[0], "value", None)
            # The package of a relative name is not known without running the code.
            if isinstance(name, str) and not name.startswith("."):
                self.modules.append(name)
                self.values.append(Value(name))
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        """Visit the annotation of a parameter."""
        self._visit_annotation(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit an assignment and its annotation."""
        self._visit_annotation(node.annotation)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit a function and the annotation of its result."""
        self._visit_annotation(node.returns)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Visit an async function as any other one."""
        self.visit_FunctionDef(node)

    def _visit_annotation(self, annotation: ast.expr | None) -> None:
        """Visit an annotation, and the texts in it, which may be annotations too."""
        if annotation is None:
            return
        self.visit(annotation)
        for part in ast.walk(annotation):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                try:
                    text = ast.parse(part.value, mode="eval").body
                except (SyntaxError, ValueError):
                    continue  # It is a text, for example in a Literal.
                self.visit(text)

    def _use(self, name: str, *attributes: str) -> None:
        for value in self._local.get(name, ()):
            self.values.append(Value(value.module, value.attributes + attributes))
        if self._code.defines(name):
            self.values.append(Value(self._code.name, (name, *attributes)))
        elif name in _LOOKUPS:
            self.values.append(Value(self._code.name))
        for value in [*self._local.get(name, ()), *self._code.imports.get(name, ())]:
            if value.module == "sys" and "modules" in value.attributes + attributes:
                self.values.append(Value(self._code.name))
