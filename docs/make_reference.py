"""Write docs/reference.md from the docstrings: python docs/make_reference.py."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import surefind

PAGE = Path(__file__).parent / "reference.md"
HEAD = """# Reference

Every public name, from its docstring (made by `python docs/make_reference.py`). Axes: `n` examples, `d`
features, `z` embedding dimension, `s` samples, `m` pairs. `import surefind as sf` and use `sf.name`.
"""


def page() -> str:
    """Compose the whole page."""
    return "\n".join([HEAD, *(entry(name) for name in sorted([*surefind.__all__, "LaplaceHead"]))])


def entry(name: str) -> str:
    """Write one name: signature, docstring, members."""
    thing = getattr(surefind, name)
    parts = [f"### `{name}`\n"]
    if inspect.ismodule(thing):
        parts += [prose(inspect.getdoc(thing) or ""), *members(thing)]
        return "\n".join(parts)
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        parts.append(f"```python\n{name}{signature(thing)}\n```\n")
    parts.append(prose(inspect.getdoc(thing) or ""))
    if inspect.isclass(thing):
        parts += [method(name, k, v) for k, v in vars(thing).items() if public(k, v)]
    return "\n".join(parts)


def members(module: ModuleType) -> list[str]:
    """Write the public classes and functions of a module."""
    own = [(k, getattr(module, k)) for k in module.__all__ if callable(getattr(module, k))]
    return [
        f"**`{module.__name__.removeprefix('surefind.')}.{name}{signature(thing)}`**\n\n"
        + prose(inspect.getdoc(thing) or "")
        for name, thing in own
    ]


def public(name: str, member: object) -> bool:
    """Say whether a class member belongs on the page."""
    documented = callable(member) or isinstance(member, classmethod | property)
    return documented and not name.startswith("_")


def method(owner: str, name: str, member: object) -> str:
    """Write one member of a class."""
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    call = "" if isinstance(member, property) else signature(function)
    return f"**`{owner}.{name}{call}`**\n\n" + prose(inspect.getdoc(function) or "")


def signature(thing: object) -> str:
    """Give parameters and defaults; types and shapes stand in the prose."""
    parameters = inspect.signature(thing).parameters.values()
    bare = [bare_parameter(p) for p in parameters if p.name not in ("self", "cls")]
    return str(inspect.Signature(bare)).replace("Ellipsis", "...")


def bare_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    """Drop the annotation, and show a default that is a function as dots."""
    empty = inspect.Parameter.empty
    function = callable(parameter.default) and parameter.default is not empty
    return parameter.replace(annotation=empty, default=... if function else parameter.default)


def prose(docstring: str) -> str:
    """Turn Google sections into lists."""
    docstring = re.sub(r"^(Args|Attributes|Raises):$", r"**\1**\n", docstring, flags=re.MULTILINE)
    docstring = re.sub(r"^(Returns|Yields):\n    ", r"**\1** ", docstring, flags=re.MULTILINE)
    docstring = re.sub(r"^    (\w+): ", r"- `\1`: ", docstring, flags=re.MULTILINE)
    return re.sub(r"^ {4,8}(?=\S)", "  ", docstring, flags=re.MULTILINE) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
