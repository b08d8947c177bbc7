"""A Jinja environment for untrusted chat templates (`TemplateSandbox`): it limits what they can access, their processor
time, and the size of their values.

Jinja's own sandbox restricts what a template can access. A template can still loop for hours, write `"x" * 10**9`, or
put a list twice into a list, fifty times over, and print it. Such an operation cannot be interrupted, so the size of
its arguments is checked before. The time is checked at every loop iteration and call. Real chat templates stay far
below these limits.
"""

import functools
import re
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# Processor time, which does not depend on the machine's load.
MAX_SECONDS = 1.0
_MAX_WIDTH = 1000
_MAX_SORTED = 100_000
_MAX_BITS = 4096
# Values measured between two checks of the time, which takes about a millisecond.
_VALUES_PER_TIME_CHECK = 1000
_WIDE = re.compile(r"[0-9]{4,}|\*")
# Maximum growth of an operation on two texts.
_GROWTH = 16
# Methods and filters that pad a text to a given width, and format strings that contain a width.
_WIDE_METHODS = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"})
_WIDE_FILTERS = frozenset({"indent", "round", "tojson"})
# Jinja adds the variables of a loop or a block to the arguments of each call in it, and takes them out before it calls.
_VARIABLES = frozenset({"_block_vars", "_loop_vars"})
# These sort their arguments in one step that cannot be interrupted.
_SORTING_FILTERS = frozenset({"dictsort", "groupby", "sort"})
_FILTERS = frozenset(
    """
    abs attr capitalize count d default dictsort e escape first float groupby indent int items join last length
    list lower map max min reject rejectattr replace reverse round safe select selectattr sort string title tojson
    trim truncate unique upper wordcount
    """.split()  # noqa: SIM905
)
# These do not read the elements of their arguments.
_SHALLOW_FILTERS = frozenset(
    """
    attr count d default first items last length list map reject rejectattr safe select selectattr
    """.split()  # noqa: SIM905
)
_SHALLOW_TESTS = frozenset(
    """
    boolean callable defined false filter float integer iterable mapping none number sameas sequence string test
    true undefined
    """.split()  # noqa: SIM905
)


class TooCostly(TemplateError):
    """Error: a chat template exceeds a limit of processor time or of a value's size. The message says which limit."""


class Meter:
    """Measures one rendering of a template against its limits: processor time, and the characters of any single value.

    `characters` is the limit of a value. The time begins when the object is created.
    """

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self._end = time.thread_time() + MAX_SECONDS

    def tick(self) -> None:
        """Raise TooCostly if the rendering has used up its processor time. The sandbox calls it at each loop iteration
        and call.
        """
        if time.thread_time() > self._end:
            raise TooCostly(f"it takes more than {MAX_SECONDS:g} s")

    def weigh(self, *values: Any) -> int:
        """Return an estimate of how many characters these values have as text. A value that occurs twice counts twice.

        Raises TooCostly if they have more characters than the limit. Values that contain many others take long to
        measure, so TooCostly is also raised if the rendering's time is used up meanwhile.
        """
        weight = num_values = 0
        waiting: list[Iterable[Any]] = [values]
        while waiting:
            for value in waiting.pop():
                num_values += 1
                if num_values % _VALUES_PER_TIME_CHECK == 0:
                    self.tick()
                outside, inside = _sides(value)
                weight += outside
                if weight > self.characters:
                    raise TooCostly(f"it creates a value of more than {self.characters} characters")
                waiting += inside
        return weight

    def check(self, size: int, growth: int = 1) -> None:
        """Raise TooCostly if `size`, in characters, is more than `growth` times the limit of a value."""
        if size > self.characters * growth:
            raise TooCostly(f"it creates a value of more than {self.characters} characters")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment whose templates have limited processor time and limited sizes of values. `options` are
    Jinja's.

    The limits apply within a `metered` block. A template that exceeds one raises TooCostly.
    """

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self._weighed, **options)
        self._running = threading.local()
        self.filters = {
            name: self._metered(
                function,
                shallow=name in _SHALLOW_FILTERS,
                wide=name in _WIDE_FILTERS,
                sorts=name in _SORTING_FILTERS,
            )
            for name, function in self.filters.items()
            if name in _FILTERS
        }
        self.filters |= {"_counted": self._counted, "_weighed": self._weighed}
        self.tests = {
            name: function if name in _SHALLOW_TESTS else self._metered(cast(Callable[..., Any], function))
            for name, function in self.tests.items()
        }
        del self.globals["lipsum"]

    @contextmanager
    def metered(self, characters: int) -> Iterator[None]:
        """Context manager that applies the limits to templates that this thread renders within its block.

        `characters` is the maximum number of characters of any value. The processor time begins with the block.
        """
        self._running.meter = Meter(characters)
        try:
            yield
        finally:
            del self._running.meter

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add the function `function` as a filter of templates, named `name`, to which the limits apply."""
        self.filters[name] = self._metered(function, wide=name in _WIDE_FILTERS)

    @property
    def _meter(self) -> Meter:
        """The limits of the rendering that runs in this thread.

        While a template is compiled, there is no rendering, so each operation gets limits of its own.
        """
        meter: Meter | None = getattr(self._running, "meter", None)
        return Meter(1 << 20) if meter is None else meter

    def _generate(self, source: nodes.Template, *arguments: Any, **options: Any) -> str:
        return super()._generate(_Metering(self).visit(source), *arguments, **options)

    def concat(self, pieces: Iterable[str]) -> str:
        """Return the joined output of a macro or block. Raises TooCostly if it is too long. Jinja calls this method."""
        written, size = [], 0
        for piece in pieces:
            written.append(piece)
            size += len(piece)
            self._meter.check(size)
        return "".join(written)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = self._meter
        if operator == "+":
            if hasattr(left, "__len__") and hasattr(right, "__len__"):
                meter.check(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            meter.weigh(right)
            _check_widths((left, right))
        elif operator == "*" and not _are_numbers(left, right):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and hasattr(text, "__len__"):
                meter.check(len(text) * times)
        elif operator in ("*", "**"):
            _check_bits(left, right, is_power=operator == "**")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = __self._meter
        meter.tick()
        weight = meter.weigh(*args, *(value for name, value in kwargs.items() if name not in _VARIABLES))
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            meter.check(len(owner) * (1 + weight), _GROWTH)
            if method.__name__ in _WIDE_METHODS:
                _check_widths((owner, *args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            meter.check(len(result))
        return result

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):  # must be hashable
            self._meter.weigh(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def _metered(
        self, function: Callable[..., Any], *, shallow: bool = False, wide: bool = False, sorts: bool = False
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            meter = self._meter
            meter.tick()
            if not shallow:
                args = tuple(list(arg) if hasattr(arg, "__next__") else arg for arg in args)
                weights = [meter.weigh(arg) for arg in (*args, *kwargs.values())]
                meter.check(max(weights) * (1 + sum(weights) - max(weights)), _GROWTH)
            if sorts and any(len(arg) > _MAX_SORTED for arg in args if hasattr(arg, "__len__")):
                raise TooCostly(f"it sorts more than {_MAX_SORTED} values")
            if wide:
                _check_widths(number for number in (*args[1:], *kwargs.values()) if isinstance(number, int))
            result = function(*args, **kwargs)
            if isinstance(result, str):
                meter.check(len(result))
            return self._counted(result) if hasattr(result, "__next__") else result

        return metered

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        meter = self._meter
        for value in values:
            meter.tick()
            yield value

    def _weighed(self, value: Any) -> Any:
        if isinstance(value, str):
            self._meter.check(len(value))
        else:
            self._meter.weigh(value)
        return value


class _Metering(NodeTransformer):
    """Rewrites the syntax tree of a template so that its loops and operators are checked against the sandbox's limits.

    It is needed where Jinja compiles an operation to a plain Python operator, which the sandbox could not intercept.
    """

    def __init__(self, environment: TemplateSandbox) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = self._filtered(node.iter, "_counted")
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [self._weighed(inner) for inner in node.nodes]
        return self._filtered(node, "_weighed")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        if sum(not _is_constant(operand) for operand in operands) > 1:
            node.expr = self._weighed(node.expr)
            for operand in node.ops:
                operand.expr = self._weighed(operand.expr)
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = self._weighed(pair.key)
        return node

    def _weighed(self, node: nodes.Expr) -> nodes.Expr:
        return node if _is_constant(node) else self._filtered(node, "_weighed")

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Filter:
        call = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        call.set_environment(self._environment)
        return call


def _is_constant(node: nodes.Expr) -> bool:
    items = node.items if isinstance(node, nodes.List | nodes.Tuple) else [node]
    return all(isinstance(item, nodes.Const) for item in items)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _check_widths(values: Iterable[Any]) -> None:
    """Raise TooCostly if one of these arguments requests a text that is padded to a very large width.

    A width is an integer, or stands in a format string such as "%999999d".
    """
    for value in values:
        inner = value if isinstance(value, tuple | list) else (value,)
        for item in inner:
            if (isinstance(item, int) and abs(item) > _MAX_WIDTH) or (isinstance(item, str) and _WIDE.search(item)):
                raise TooCostly(f"it writes a text with a width of more than {_MAX_WIDTH}")


def _check_bits(left: Any, right: Any, *, is_power: bool) -> None:
    """Raise TooCostly if an operation on two integers would give a number with too many bits.

    The operation is left ** right if `is_power`, else left * right. Other values are not checked.
    """
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if is_power else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise TooCostly(f"it creates a number of more than {_MAX_BITS} bits")


def _sides(value: Any) -> tuple[int, tuple[Iterable[Any], ...]]:
    """Split a value for the estimate of its size: returns the characters of its own text, such as brackets and commas,
    and the collections with the values in it.
    """
    if isinstance(value, str | bytes):
        return len(value), ()
    if isinstance(value, int):
        return value.bit_length() >> 2, ()
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return len(value), (value,)
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, dict):
        return len(value), (value, value.values())
    return (len(value) if isinstance(value, range) else 1), ()
