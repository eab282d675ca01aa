"""TemplateEnvironment: Jinja for chat templates that come from hostile files. Shared by threads.

On top of Jinja's immutable sandbox: only listed methods and filters exist, every loop turn, call, operator
and comparison counts against a Budget, and constants of the template are TemplateText, so that what the
template wrote can be told from what somebody typed.
"""

from __future__ import annotations

import operator
import re
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from string import Formatter
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace

from plait.tokenizer.budget import Budget, BudgetError
from plait.tokenizer.provenance import TemplateText, joined, trusted
from plait.tokenizer.template_filters import FILTERS, TESTS_THAT_COMPARE
from plait.tokenizer.vocab import words

_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (
        str,
        words(
            """strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith upper
            lower title capitalize replace join find rfind index rindex count format removeprefix removesuffix
            casefold swapcase isdigit isalpha isalnum isspace isupper islower isnumeric isdecimal istitle"""
        ),
    ),
    (dict, frozenset({"items", "keys", "values", "get"})),
    (list, frozenset({"index", "count"})),
    (tuple, frozenset({"index", "count"})),
)
_OPEN_TYPES = (LoopContext, Namespace, Macro, Cycler, Joiner)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
_SCALARS = (str, int, float, bool, type(None), Undefined)
_MAX_INT_BITS = 4096
_WIDE_FORMAT = re.compile(r"\d{4}|\*")


class _Code(CodeGenerator):
    """Python code in which constants are trusted text and nothing runs that is not counted."""

    environment: TemplateEnvironment

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, str):
            self.write(self.environment.constant(node.value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(self.environment.constant(node.data))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self.environment.constant("".join(group))

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return node.data
        raise nodes.Impossible  # no part of a hostile template is evaluated while it is compiled

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_values((")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("environment.compare(")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", ({operand.op!r}, ")
            self.visit(operand.expr, frame)
            self.write(")")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        self.write("environment.getitem(")
        self.visit(node.node, frame)
        if isinstance(node.arg, nodes.Slice):
            self.write(", slice(")
            for bound in (node.arg.start, node.arg.stop, node.arg.step):
                if bound is None:
                    self.write("None")
                else:
                    self.visit(bound, frame)
                self.write(", ")
            self.write("))")
            return
        self.write(", ")
        if isinstance(node.arg, nodes.Const):
            self.write(repr(node.arg.value))
        else:
            self.visit(node.arg, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.make_dict((")
        for pair in node.items:
            self.write("(")
            self.visit(pair.key, frame)
            self.write(", ")
            self.visit(pair.value, frame)
            self.write("), ")
        self.write("))")


class GenerationTag(Extension):
    """``{% generation %}``: marks what a model wrote, for training; means nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """One per template; ``use`` gives the calling thread its budget."""

    code_generator_class = _Code
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=self.to_text,
        )
        self._constants: dict[str, int] = {}
        self.constants: list[TemplateText] = []
        self._local = threading.local()
        self.filters = {name: self._counted(function) for name, function in FILTERS.items()}
        tests: dict[str, Any] = self.tests
        self.tests = {name: self._counted(test, name in TESTS_THAT_COMPARE) for name, test in tests.items()}
        self.globals.pop("lipsum")
        self.globals["dict"] = self._dict

    @property
    def budget(self) -> Budget:
        budget: Budget = self._local.budget
        return budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._local.budget = budget

    @property
    def counted(self) -> bool:
        """Always True; reading it counts one operation. Compiled into every loop and macro."""
        self.budget.tick()
        return True

    def constant(self, text: str) -> str:
        """Python source of a constant of the template."""
        index = self._constants.setdefault(text, len(self.constants))
        if index == len(self.constants):
            self.constants.append(trusted(text))
        return f"environment.constants[{index}]"

    def instrument(self, template: nodes.Template) -> nodes.Template:
        """Put a count into every loop turn and macro call."""
        loop: nodes.For
        for loop in template.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("counted")))
            if loop.test is not None:
                loop.test = nodes.And(nodes.EnvironmentAttribute("counted"), loop.test)
        macro: Any
        for macro in template.find_all((nodes.Macro, nodes.CallBlock)):
            macro.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("counted")))
        template.set_environment(self)
        return template

    def to_text(self, value: Any) -> str:
        """What ``{{ value }}`` writes. Numbers have no text of anybody's, so they are the template's."""
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float, type(None))):
            return trusted(str(value))
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            self.budget.charge(self.budget.measure(value))
        text = str(value)
        self.budget.charge(len(text))
        return text

    def join_values(self, values: Iterable[Any]) -> str:
        """``~``, and the work of ``join``."""
        texts = [self.to_text(value) for value in values]
        self.budget.tick()
        self.budget.charge(sum(map(len, texts)))
        return joined(texts)

    def concat(self, parts: Iterable[str]) -> str:
        """What a macro or a block wrote."""
        texts = list(parts)
        self.budget.charge(sum(map(len, texts)))
        return joined(texts)

    def compare(self, left: Any, *operands: tuple[str, Any]) -> bool:
        budget = self.budget
        for name, right in operands:
            budget.tick()
            if isinstance(right, dict) and name in ("in", "notin"):
                self._check_key(left)
            else:
                for side in (left, right):
                    if not isinstance(side, _SCALARS):
                        budget.measure(side)
            if not _COMPARISONS[name](left, right):
                return False
            left = right
        return True

    def make_dict(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        made = {}
        for key, value in pairs:
            self._check_key(key)
            made[key] = value
        self.budget.charge(len(made))
        return made

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, slice):
            self.budget.tick()
            part = obj[argument]
            self.budget.charge_result(part)
            return part
        self._check_key(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, _OPEN_TYPES):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _METHODS)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, str) or value.__name__ not in ("format", "format_map"):
            return None
        if value.__name__ == "format_map":
            return lambda mapping: self._format(owner, (), mapping)
        return lambda *args, **kwargs: self._format(owner, args, kwargs)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.tick()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (str, list, tuple, dict)):
            self._check_method(owner, function.__name__, args)
        elif not isinstance(function, (Macro, type, types.FunctionType, types.MethodType, *_OPEN_TYPES)):
            if not callable(function) or isinstance(function, Undefined):
                return function()
            raise SecurityError(f"{type(function).__name__} may not be called")
        result = super().call(context, function, *args, **kwargs)
        self.budget.charge_result(result)
        return result

    def call_binop(self, context: Context | None, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        budget.tick()
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            if (
                isinstance(left, int)
                and isinstance(right, int)
                and left.bit_length() * abs(right) > _MAX_INT_BITS
            ):
                raise BudgetError("it makes a number that is too large")
        elif (
            operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple))
        ):
            budget.check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            right = self._format_arguments(left, right)
        result = self.binop_table[operator](left, right)
        budget.charge_result(result)
        return result

    def _format_arguments(self, pattern: str, values: Any) -> Any:
        if _WIDE_FORMAT.search(pattern):
            raise BudgetError("it formats too widely")
        items = values if isinstance(values, tuple) else (values,)
        made = tuple(
            self.to_text(item) if isinstance(item, (dict, list, tuple, Undefined)) else item for item in items
        )
        self.budget.check_size(len(pattern) * (1 + sum(len(item) for item in made if isinstance(item, str))))
        return values if isinstance(values, dict) else made

    def _format(self, pattern: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """``str.format`` that keeps trust where a field has no format of its own."""
        fields = SandboxedFormatter(self)
        parts: list[str] = []
        is_trusted = isinstance(pattern, TemplateText) and pattern.is_trusted
        next_index = 0
        for literal, name, spec, conversion in Formatter().parse(pattern):
            parts.append(trusted(literal) if is_trusted else literal)
            if name is None:
                continue
            if name == "" or name[0] in ".[":
                name, next_index = f"{next_index}{name}", next_index + 1
            value, _ = fields.get_field(name, args, kwargs)
            if spec or conversion:
                if _WIDE_FORMAT.search(spec or "") or "{" in (spec or ""):
                    raise BudgetError("it formats too widely")
                self.budget.charge(self.budget.measure(value))
                converted: Any = fields.convert_field(value, conversion) if conversion else value
                parts.append(format(converted, spec or ""))
            else:
                parts.append(self.to_text(value))
        self.budget.charge(sum(map(len, parts)))
        return joined(parts)

    def _check_product(self, left: Any, right: Any) -> None:
        for one, count in ((left, right), (right, left)):
            if isinstance(one, (str, list, tuple)) and isinstance(count, int):
                self.budget.check_size(len(one) * max(count, 0))
        is_number = isinstance(left, int) and isinstance(right, int)
        if is_number and left.bit_length() + right.bit_length() > _MAX_INT_BITS:
            raise BudgetError("it makes a number that is too large")

    def _check_method(self, owner: Any, name: str, args: tuple[Any, ...]) -> None:
        """Refuse method calls whose result or work would be out of proportion."""
        budget = self.budget
        if not any(isinstance(owner, kind) and name in names for kind, names in _METHODS):
            raise SecurityError(f"{type(owner).__name__}.{name} may not be called")
        if isinstance(owner, dict):
            for key in args[:1]:
                self._check_key(key)
        elif not isinstance(owner, str):
            budget.measure(owner)
            budget.measure(args)
        elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
            places = owner.count(args[0]) if args[0] else len(owner) + 1
            budget.check_size(len(owner) + places * len(args[1]))
        elif name == "join" and args:
            if not isinstance(args[0], (str, list, tuple, dict)):
                raise BudgetError("it joins something that is no list")
            budget.check_size(budget.measure(args[0]) + len(owner) * len(args[0]))

    def _check_key(self, key: Any) -> None:
        if not isinstance(key, _SCALARS):
            raise TypeError(f"a {type(key).__name__} is no key")

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for source in args:
            pairs = source.items() if isinstance(source, dict) else source
            made.update(self.make_dict((key, value) for key, value in pairs))
        made.update(kwargs)
        return made

    def _counted(self, function: Callable[..., Any], is_measured: bool = False) -> Callable[..., Any]:
        """The filter or test, with its arguments and result put on the budget."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.tick()
            if is_measured or getattr(function, "is_measured", False):
                for value in (*args, *kwargs.values()):
                    budget.measure(value)
            result = function(*args, **kwargs)
            if isinstance(result, Iterator):
                return self._counted_items(result)
            budget.charge_result(result)
            return result

        if hasattr(function, "jinja_pass_arg"):
            counted.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return counted

    def _counted_items(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.tick()
            yield item
