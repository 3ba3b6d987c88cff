"""Names of locks made from values, of a request or of a call: `"order:{order_id}"`.

A value must not decide which other lock is meant. So the values are percent-encoded, which leaves nothing of
them but letters, digits and `_.-~%`, and between two fields there must be something else: whatever the values
are, two requests or calls have the same name only if the texts of all their values are the same.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import inspect
import numbers
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast, final
from urllib.parse import quote

from .._logs import get_logger
from .options import lock_name

log = get_logger("aiolocks.session")

_IN_VALUES: Final = frozenset(string.ascii_letters + string.digits + "_.-~%")
"""The characters that a percent-encoded value can have."""

_ALIKE: Final = 0.8
"""How much a field must resemble a parameter to be taken for a slip of it: `order` is not yet `order_id`."""

_ANY_DAY: Final = dt.date(2000, 1, 1)

_SEVERAL: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@final
class NameTemplate:
    """A name with fields in braces; `{{` and `}}` are braces of the name itself.

    Args:
        text: The template.
        otherwise: For messages: the way to make a name that no template can make.

    Raises:
        TypeError, ValueError: It is not a str, or has a field that is not a plain identifier, or two that run
            into each other.
    """

    __slots__ = ("_parts", "fields", "otherwise", "text")

    def __init__(self, text: str, *, otherwise: str) -> None:
        self.text = lock_name(text)
        self.otherwise = otherwise
        self._parts: list[tuple[str, str | None]] = []  # text, and the field after it
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(
                f"name {text!r} is not a template: {error}; double the braces that belong to the name"
            ) from None
        between = None  # nothing stands before the first field
        for literal, field, format_spec, conversion in parsed:
            if field is not None and (not field.isidentifier() or format_spec or conversion):
                shown = (
                    f"{{{field}{'!' + conversion if conversion else ''}{format_spec and ':' + format_spec}}}"
                )
                raise ValueError(
                    f"a field of the name must be the name of a parameter in braces, not {shown}: "
                    f"{otherwise} for anything else, and double the braces that belong to the name"
                )
            between = literal if between is None else between + literal
            if field is not None:
                if self._parts and self._parts[-1][1] is not None and _IN_VALUES.issuperset(between):
                    raise ValueError(
                        f"between two fields of the name there must be a character that no value can have, "
                        f"such as ':', not {between!r}: two different pairs of values could share a name"
                    )
                self._parts.append((between, field))
                between = ""
        self._parts.append((between or "", None))
        self.fields = tuple(dict.fromkeys(field for _, field in self._parts if field is not None))

    def fill(self, values: Mapping[str, str]) -> str:
        """The name.

        Raises:
            ValueError: It is empty, or longer than a name may be.
        """
        parts: list[str] = []
        for literal, field in self._parts:
            parts.append(literal)
            if field is not None:
                # Lone surrogates, which no encoding has, must not end in an error of ours either.
                parts.append(quote(values[field], safe="", errors="surrogatepass"))
        return lock_name("".join(parts))

    def fits(self, name: str) -> bool:
        """Whether it gives that name for some values."""
        pattern, seen = "", set[str]()
        for literal, field in self._parts:
            pattern += re.escape(literal)
            if field is not None:
                pattern += f"(?P={field})" if field in seen else f"(?P<{field}>[A-Za-z0-9_.~%-]*)"
                seen.add(field)
        return re.fullmatch(pattern, name) is not None

    def __repr__(self) -> str:
        return f"<NameTemplate {self.text!r}>"


_DIGITS: Final = 1100
"""More than a name may have."""


def text_of(value: object) -> str:
    """A value as text: equal values have one text, however each of them is written.

    | type | text |
    |---|---|
    | `str` | itself |
    | `int`, `float`, `Decimal`, `Fraction` | digits: `1` for `1.0` and `1.00`, `0` for `-0.0` |
    | `bool` | `True`, `False` |
    | `datetime`, `time` with a time zone | in UTC, as ISO 8601 |
    | `datetime`, `time` without; `date` | as ISO 8601 |
    | `None` | empty |
    | `Enum` | that of its value |
    | with a `__str__` of its own | the text of `str()` |

    A `float` that is not whole is the shortest decimal number that Python reads as it.

    Raises:
        TypeError: It has no text that says which value it is.
        ValueError: It equals nothing, or has no text that a name could have.
    """
    while isinstance(value, enum.Enum):
        value = cast("object", value.value)
    if value is None:
        return ""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, numbers.Number):
        return _text_of_number(value)
    if isinstance(value, (dt.datetime, dt.time)):
        return _in_utc(value).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if type(value).__str__ is object.__str__ or isinstance(value, (bytes, bytearray)):
        raise _without_text(value)
    return str(value)


def _without_text(value: object) -> TypeError:
    return TypeError(
        f"a {type(value).__name__} has no text that is the same in every process: pass a str, a number, a "
        "date, an Enum, or an object with a __str__ of its own"
    )


def _text_of_number(value: object) -> str:
    if isinstance(value, numbers.Integral):
        return str(int(value))
    from decimal import Context, Decimal, Inexact  # noqa: PLC0415 - few names need it, and an import takes time

    if isinstance(value, numbers.Rational):
        above, below = int(value.numerator), int(value.denominator)
        exact = Context(prec=_DIGITS)
        value = exact.divide(Decimal(above), Decimal(below))
        if exact.flags[Inexact]:
            return f"{above}/{below}"
    elif isinstance(value, numbers.Real):
        value = float(value)
        value = Decimal(int(value) if value.is_integer() else repr(value))
    if not isinstance(value, Decimal):
        raise _without_text(value)
    if value.is_nan():
        raise ValueError("nan equals nothing, not even itself")
    if value.is_infinite():
        return "inf" if value > 0 else "-inf"
    if not value:
        return "0"
    if abs(value.adjusted()) > _DIGITS or len(value.as_tuple().digits) > _DIGITS:
        raise ValueError("that number has more digits than a name may have")
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _in_utc(value: dt.datetime | dt.time) -> dt.datetime | dt.time:
    """The same moment, or time of the day; unchanged where nothing says of which time zone it is."""
    if value.utcoffset() is None:
        return value.replace(tzinfo=None)
    if isinstance(value, dt.time):
        return dt.datetime.combine(_ANY_DAY, value).astimezone(dt.UTC).timetz()
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise ValueError("that moment cannot be told in UTC") from None


# -- of a call


@final
class CallNames:
    """Names made of the arguments that a function is called with.

    Args:
        templates: The names.
        signature: Of the function.
        called: How messages call the function.
    """

    __slots__ = ("_called", "_fields", "_signature", "_templates")

    def __init__(self, templates: list[NameTemplate], signature: inspect.Signature, called: str) -> None:
        self._templates = templates
        self._signature = signature
        self._called = called
        self._fields = list(dict.fromkeys(field for template in templates for field in template.fields))

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """The names for one call.

        Raises:
            TypeError: An argument is missing or one too many, or has no text of its own.
            ValueError: An argument equals nothing, or a name is empty, or longer than a name may be.
        """
        if not self._fields:
            return tuple(template.fill({}) for template in self._templates)
        # Only the arguments that a name needs must be there: another decorator may add the rest.
        given = self._signature.bind_partial(*args, **kwargs).arguments
        values = {field: self._text(field, given) for field in self._fields}
        return tuple(template.fill(values) for template in self._templates)

    def _text(self, field: str, given: Mapping[str, object]) -> str:
        value = given.get(field, self._signature.parameters[field].default)
        if value is inspect.Parameter.empty:
            raise TypeError(f"{self._called} missing a required argument: {field!r}")
        try:
            return text_of(value)
        except TypeError as error:
            raise TypeError(self._in_its_name(field, error)) from error
        except ValueError as error:
            raise ValueError(self._in_its_name(field, error)) from error

    def _in_its_name(self, field: str, error: Exception) -> str:
        return f"{self._called} has the value of {field!r} in its name, and {error}"


def names_of_calls(names: tuple[str, ...], function: Callable[..., Any]) -> CallNames | None:
    """The names of a lock that decorates a function, as they depend on its arguments.

    Each name is a template, whose fields are parameters of the function. A field that is none would be one
    lock for all calls; so it is an error, and braces of the name itself are doubled.

    Args:
        names: The names.
        function: The function that the lock decorates.

    Returns:
        None where the names are no templates: they have no braces.

    Raises:
        TypeError: A field is no parameter, or several values; or the parameters cannot be seen.
        ValueError: A template is not as it should be.
    """
    if not any(brace in name for name in names for brace in "{}"):
        return None
    called = f"{getattr(function, '__qualname__', repr(function))}()"
    templates = [
        NameTemplate(name, otherwise="make the name in the function, and acquire the lock there,")
        for name in names
    ]
    fields = {field: template.text for template in templates for field in template.fields}
    if not fields:
        return CallNames(templates, inspect.Signature(), called)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the name {next(iter(fields.values()))!r} has fields, but the parameters of {called} cannot be "
            f"seen: {error}"
        ) from None
    for field, name in fields.items():
        parameter = signature.parameters.get(field)
        if parameter is None:
            raise TypeError(
                f"the name {name!r} has a field {field!r}, but {called} has no such parameter: "
                f"{_remedy(field, signature)}double the braces that belong to the name, as in "
                f"{{{{{field}}}}}"
            )
        if parameter.kind in _SEVERAL:
            raise TypeError(f"the name {name!r} has a field {field!r}, but that is several values")
    return CallNames(templates, signature, called)


def _remedy(field: str, signature: inspect.Signature) -> str:
    """The likely meaning of a field that is no parameter."""
    import difflib  # noqa: PLC0415 - of mistakes only

    parameters = signature.parameters
    if alike := difflib.get_close_matches(field, parameters, n=1, cutoff=_ALIKE):
        return f"did you mean {{{alike[0]}}}? Otherwise "
    hiding = [str(one).partition(":")[0] for one in parameters.values() if one.kind in _SEVERAL]
    if hiding:
        hide = ", ".join(hiding)
        return f"{hide} hide the parameters of a function beneath, which functools.wraps shows; or "
    return ""


# -- of values that the program gives


def name_of(template: str, /, **fields: object) -> str:
    """The name that a decorator with this template gives to a call with these values.

    ```python
    lock = Lock(redis, name_of("account:{payer}", payer=payer))
    ```

    The values are percent-encoded: letters, digits and `_.-~` stay as they are. So no value can decide which
    other name is meant, and a decorator, `Locked` of FastAPI and `lock.of()` make the same name. An f-string
    makes another one of `ann@shop.example`, `4/7` or `Zoë`. No I/O.

    Args:
        template: A name with fields in braces; `{{` and `}}` are braces of the name itself.
        fields: The value of each field. Equal values have one text: `1.0` is `1`, and a `datetime` with a
            time zone is written in UTC.

    Raises:
        TypeError: A field is missing or one too many, or the text of a value is not the same in every
            process.
        ValueError: The template is wrong, or the name is empty or longer than 1 KiB in UTF-8, or a value is
            not equal to itself, such as `nan`.
    """
    (name,) = filled_in((template,), fields)
    if fields:
        is_template(template)
    return name


def is_template(text: str) -> None:
    """Names are made of it, for whichever session."""
    if text not in _of_all_sessions:
        _add(_of_all_sessions, text)


def filled_in(templates: Sequence[str], fields: Mapping[str, object]) -> tuple[str, ...]:
    """The names that these templates give for these values.

    Raises:
        TypeError: A field is missing or one too many, or has no text of its own.
        ValueError: A template is wrong, a value equals nothing, or a name is empty or too long.
    """
    if not fields:
        return _filled_in_before(tuple(templates))
    return _filled(templates, fields)


@functools.lru_cache(maxsize=256)
def _filled_in_before(templates: tuple[str, ...]) -> tuple[str, ...]:
    """The names without values, which an object asks for again and again."""
    return _filled(templates, {})


def _filled(templates: Sequence[str], fields: Mapping[str, object]) -> tuple[str, ...]:
    parsed = [_parsed(template) for template in templates]
    known = {field: one.text for one in parsed for field in one.fields}
    for field, text in known.items():
        if field not in fields:
            raise TypeError(f"the name {text!r} has a field {field!r}: give {field}=...")
    texts: dict[str, str] = {}
    for field, value in fields.items():
        if field not in known:
            raise TypeError(f"the name {', '.join(templates)!r} has no field {field!r}")
        try:
            texts[field] = text_of(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the value of {field!r} in the name {known[field]!r}: {error}") from error
    return tuple(one.fill(texts) for one in parsed)


def whole(names: Iterable[str]) -> tuple[str, ...]:
    """Templates without fields, which give these names."""
    return tuple(name.replace("{", "{{").replace("}", "}}") for name in names)


def fits(text: str, name: str) -> bool:
    """Whether a name is that text, or is made of it as a template."""
    if text == name:
        return True
    if "{" not in text:
        return False
    try:
        return _parsed(text).fits(name)
    except ValueError:  # it is no template
        return False


@functools.lru_cache(maxsize=256)
def _parsed(template: str) -> NameTemplate:
    return NameTemplate(template, otherwise="make the whole name yourself")


# -- one text that is used as a template, and as a name

_FIELD: Final = re.compile(r"\{[^\W\d]\w*\}")
_MOST_TEXTS: Final = 256
"""A program has few templates; but hash tags, which look like a field, may be of any number."""

_of_all_sessions: dict[str, None] = {}
"""The templates of `name_of` and of frameworks, which make a name before a session sees it."""


def _add(texts: dict[str, None], text: str) -> None:
    if len(texts) >= _MOST_TEXTS:
        del texts[next(iter(texts))]
    texts[text] = None


@final
class NamesInUse:
    """Tells of a name that is acquired as it stands, though it is a template in this session: once."""

    __slots__ = ("_plain", "_templates", "_told")

    def __init__(self) -> None:
        self._plain: dict[str, None] = {}
        self._templates: dict[str, None] = {}
        self._told: dict[str, None] = {}

    def used(self, names: Iterable[str], *, made_of: Iterable[str] | None = None) -> None:
        """These are acquired: as they stand, or made of templates."""
        if made_of is not None:
            for text in made_of:
                if text not in self._templates:
                    _add(self._templates, text)
                    if text in self._plain:
                        self._tell(text)
            return
        for name in names:
            if "{" in name and name not in self._told and _FIELD.search(name):
                _add(self._plain, name)
                if name in self._templates or name in _of_all_sessions:
                    self._tell(name)

    def _tell(self, text: str) -> None:
        if text in self._told:
            return
        _add(self._told, text)
        log.warning(
            "%r is acquired as it stands, and is a template elsewhere in this program: these are different "
            "names, which do not exclude each other; give the values, as in lock.of(...) or name_of(...)",
            text,
        )
