"""Shows the reference as a user needs it.

Signatures are those of calls: without the parameters that only catch unknown arguments, and with the options
that are declared in one place for several functions. Each option has the default that a call gets. Each
error links to the section of the page on troubleshooting that has its messages, and each kind of lock to the
options that all kinds have in common.
"""

from __future__ import annotations

from typing import Any

import griffe

HIDDEN = "Never"
"""The type of parameters that take unknown arguments, to say in the error how the right one is called."""
TROUBLE = "../how-to/troubleshooting.md"
DEFAULTS = {
    "aiolocks.contrib.idempotency._policy.Options": "aiolocks.contrib.idempotency._policy.Policy",
    "aiolocks.lock.engine.SessionOptions": "aiolocks.lock.session.Session",
}
"""Where the defaults of options stand: those of a class."""
COMMON = "Options that are not described here are those of `Lock`."


class Signatures(griffe.Extension):
    """Reads each function, method and error."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """A function has been read: removes the parameters, and shows which default is that of the object."""
        for parameter in list(func.parameters):
            if str(parameter.annotation) == HIDDEN:
                del func.parameters[parameter.name]
        for parameter in func.parameters:
            if str(parameter.default) == "AS_CONFIGURED":
                parameter.default = f"self.{parameter.name}"

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """All modules have been read: `**options: Unpack[Options]` is written out if each has its text."""
        for overload in func.overloads or ():
            for parameter in overload.parameters:
                if parameter.default == "..." and parameter.name in func.parameters:
                    parameter.default = func.parameters[parameter.name].default
        for parameter in list(func.parameters):
            annotation = parameter.annotation
            if parameter.kind is not griffe.ParameterKind.var_keyword or _described(func, parameter.name):
                continue
            if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_name == "Unpack":
                options = func.modules_collection[annotation.slice.canonical_path]
                if options.name.startswith("_"):
                    continue  # of a method that no page shows
                del func.parameters[parameter.name]
                given = _defaults(func.modules_collection[DEFAULTS[options.canonical_path]])
                for name, option in options.attributes.items():
                    func.parameters[name] = griffe.Parameter(
                        name,
                        annotation=option.annotation,
                        kind=griffe.ParameterKind.keyword_only,
                        default=given[name],
                    )

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """A class has been read: errors and kinds of locks get their links."""
        if cls.docstring is not None and COMMON in cls.docstring.value:
            link = "Options that are not described here are the [common options](lock.md#common-options)."
            cls.docstring.value = cls.docstring.value.replace(COMMON, link)
        if cls.module.path == "aiolocks.errors" and cls.name != "LockError" and cls.docstring is not None:
            first, _, rest = cls.docstring.value.partition("\n")
            link = f"[Its messages, with causes and remedies]({TROUBLE}#{cls.name.lower()})."
            cls.docstring.value = f"{first}\n\n{link}\n{rest}"


def _described(func: griffe.Function, name: str) -> bool:
    """Whether the parameter has a text of its own, for all that it takes."""
    of_class = func.parent.docstring if func.parent is not None else None
    return any(f"**{name}:" in doc.value for doc in (func.docstring, of_class) if doc is not None)


def _defaults(cls: griffe.Class) -> dict[str, Any]:
    """Those of the options of a class: of the fields of a dataclass, or of its arguments."""
    fields = {name: field.value for name, field in cls.attributes.items()}
    return fields | {parameter.name: parameter.default for parameter in cls["__init__"].parameters}
