"""The parameters that FastAPI's handlers have for the values of a request, for names made from them.

The value that counts is the one that the handler gets, and not the text in the URL: with `order_id: int`,
`/orders/7` and `/orders/07` are one order, and so they must be one lock.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Union, final, get_args, get_origin
from weakref import WeakKeyDictionary

from fastapi import Request, params
from fastapi.dependencies.utils import get_typed_signature
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from ..errors import ConfigurationError
from ..lock.naming import NameTemplate, text_of

_NOT_GIVEN: Final = inspect.Parameter.empty


@final
class Field:
    """One field of a template, as one handler understands it.

    Args:
        name: The field.
        where: `"path"` or `"query"`.
        alias: The name of the parameter there.
        annotation: The type that the handler gives it.
        default: The default, if the request has no value.
    """

    __slots__ = ("_adapter", "_alias", "_default", "_where", "name")

    def __init__(self, name: str, where: str, alias: str, annotation: Any, default: Any) -> None:
        self.name = name
        self._where = where
        self._alias = alias
        self._default = default
        self._adapter: TypeAdapter[Any] | None = None if annotation is _NOT_GIVEN else TypeAdapter(annotation)

    def text(self, request: Request) -> str:
        """The value in one request, as text: the same for equal values (`text_of`).

        Raises:
            RequestValidationError: FastAPI would refuse it too, or it equals nothing.
            TypeError: Values of this type have no text.
        """
        values: Mapping[str, Any] = request.path_params if self._where == "path" else request.query_params
        given = values.get(self._alias, _NOT_GIVEN)
        if given is _NOT_GIVEN:
            if self._default is _NOT_GIVEN:
                missing = {"type": "missing", "msg": "Field required", "input": None}
                raise RequestValidationError([{**missing, "loc": (self._where, self._alias)}])
            return text_of(self._default)
        place = (self._where, self._alias)
        try:
            return text_of(given if self._adapter is None else self._adapter.validate_python(given))
        except ValidationError as error:
            found = [{**each, "loc": (*place, *each["loc"])} for each in error.errors(include_url=False)]
            raise RequestValidationError(found) from None
        except ValueError as error:
            nameless = {"type": "value_error", "msg": f"No lock: {error}", "input": given, "loc": place}
            raise RequestValidationError([nameless]) from None


@final
class Fields:
    """The fields of one template, which may serve several routes.

    Args:
        template: The template.
        but: The fields that come from another source.
    """

    __slots__ = ("_but", "_known", "_template")

    def __init__(self, template: NameTemplate, *, but: Collection[str] = ()) -> None:
        self._template = template
        self._but = but
        # By handler and parameters of the path.
        self._known: WeakKeyDictionary[Callable[..., Any], dict[frozenset[str], list[Field]]]
        self._known = WeakKeyDictionary()

    def of(self, request: Request) -> list[Field]:
        """Those that come from a request, as its handler understands them."""
        endpoint, in_path = request.scope["endpoint"], frozenset(request.path_params)
        try:
            known = self._known.setdefault(endpoint, {})
        except TypeError:  # an object without a hash, as one of a dataclass: they are made anew each time
            known = {}
        fields = known.get(in_path)
        if fields is None:
            fields = known[in_path] = self.check(endpoint, in_path)
        return fields

    def check(self, endpoint: Callable[..., Any], in_path: Iterable[str]) -> list[Field]:
        """Those of each request to this handler; `in_path` are the parameters of its path.

        Raises:
            ConfigurationError: A field is neither a parameter of the path nor one that the handler has from
                the query; or it is a list.
        """
        in_path, parameters = set(in_path), get_typed_signature(endpoint).parameters
        return [
            _field(self._template, name, parameters.get(name), in_path)
            for name in self._template.fields
            if name not in self._but
        ]


def _field(
    template: NameTemplate, name: str, parameter: inspect.Parameter | None, in_path: set[str]
) -> Field:
    if parameter is None:
        if name not in in_path:
            raise ConfigurationError(
                f"the name {template.text!r} has a field {name!r}, but the route has no such parameter in "
                f"its path, and its handler none from the query: {template.otherwise} if the name is to be "
                "made of anything else"
            )
        return Field(name, "path", name, _NOT_GIVEN, _NOT_GIVEN)
    alias, default = name, parameter.default
    told = [default] if isinstance(default, (params.Param, params.Body, params.Depends)) else []
    if told:
        default = _NOT_GIVEN
    if get_origin(parameter.annotation) is Annotated:
        told += get_args(parameter.annotation)[1:]
    for about in told:
        if isinstance(about, (params.Header, params.Cookie, params.Body, params.Depends)):
            raise ConfigurationError(
                f"the name {template.text!r} has a field {name!r}, but the handler has that neither from the "
                f"path nor from the query: {template.otherwise} if the name is to be made of it"
            )
        if isinstance(about, params.Param):
            alias = (
                about.validation_alias if isinstance(about.validation_alias, str) else about.alias or alias
            )
            if default is _NOT_GIVEN and not about.is_required():
                default = about.get_default(call_default_factory=True)
    if _is_several(parameter.annotation):
        raise ConfigurationError(
            f"the name {template.text!r} has a field {name!r}, but that is several values: "
            f"{template.otherwise} if the name is to be made of them"
        )
    where = "path" if alias in in_path else "query"
    return Field(name, where, alias, parameter.annotation, default)


def _is_several(annotation: Any) -> bool:
    """Whether it is a list or the like."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_several(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return any(map(_is_several, get_args(annotation)))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, Collection) and not issubclass(kind, (str, bytes))
