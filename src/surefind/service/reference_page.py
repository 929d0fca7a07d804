"""The HTTP interface as a page for people, made from the OpenAPI description; it needs no other host.

A request is a section: what it does, its parameters, its body and its answer. The values that go over the
wire follow, each once, and names of values are links to them. There is no script, and all text is escaped.
"""

from collections.abc import Iterator
from html import escape
from typing import Any

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>surefind: HTTP interface</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/style.css">
</head>
<body>
<main id="main">
"""
TAIL = "</main>\n</body>\n</html>\n"


def reference_page(description: dict[str, Any]) -> str:
    """Return the page of an OpenAPI description, as HTML."""
    about = description["info"]
    parts = [
        HEAD,
        f"<h1>{escape(about['title'])} {escape(about['version'])}: HTTP interface</h1>\n",
        f"<p>{escape(about.get('summary', ''))} The same for programs: "
        '<a href="/v1/openapi.json">/v1/openapi.json</a>. <a href="/">To the page</a>.</p>\n',
    ]
    requests = list(_requests(description))
    links = [
        f'<li><a href="#{escape(one["operationId"])}">{_title(method, path)}</a></li>\n'
        for method, path, one in requests
    ]
    parts += ["<nav aria-label='Requests'><ul>\n", *links, "</ul></nav>\n"]
    parts += [_request(method, path, one) for method, path, one in requests]
    schemas = description.get("components", {}).get("schemas", {})
    parts += ["<h2>Values</h2>\n", *(_value(name, schemas[name]) for name in sorted(schemas))]
    return "".join([*parts, TAIL])


def _requests(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, one in methods.items():
            yield method.upper(), path, one


def _title(method: str, path: str) -> str:
    return f"<code>{escape(method)} {escape(path)}</code>"


def _request(method: str, path: str, one: dict[str, Any]) -> str:
    parts = [f'<h2 id="{escape(one["operationId"])}">{_title(method, path)}</h2>\n']
    parts.append(f"<p>{escape(one.get('description', ''))}</p>\n")
    rows = [
        (p["name"], f"{p['in']}, {_kind(p['schema'])}{_needed(p)}", _meaning(p))
        for p in one.get("parameters", ())
    ]
    parts.append(_table("Parameters", rows))
    for kind, body in one.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: {escape(kind)}, {_kind(body['schema'])}</p>\n")
        parts.append(_fields(body["schema"]))
    answers = one.get("responses", {}).items()
    rows = [(status, _answer(answer), answer.get("description", "")) for status, answer in answers]
    parts.append(_table("Answers", rows))
    return "".join(parts)


def _answer(answer: dict[str, Any]) -> str:
    found = answer.get("content", {}).items()
    return "; ".join(f"{escape(kind)} {_kind(body.get('schema', {}))}" for kind, body in found)


def _value(name: str, schema: dict[str, Any]) -> str:
    head = f'<h3 id="value-{escape(name)}"><code>{escape(name)}</code></h3>\n'
    return f"{head}<p>{escape(schema.get('description', ''))}</p>\n{_fields(schema)}"


def _fields(schema: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (name, _kind(one) + _needed({"required": name in needed}), _meaning(one))
        for name, one in schema.get("properties", {}).items()
    ]
    return _table("Fields", rows)


def _table(caption: str, rows: list[tuple[str, str, str]]) -> str:
    """Write a table; the first and the last column are text, the middle one is HTML."""
    if not rows:
        return ""
    body = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(meaning)}</td></tr>\n"
        for name, kind, meaning in rows
    )
    return f"<table>\n<caption>{escape(caption)}</caption>\n{body}</table>\n"


def _needed(one: dict[str, Any]) -> str:
    return ", required" if one.get("required") else ""


def _meaning(one: dict[str, Any]) -> str:
    text = one.get("description") or one.get("schema", {}).get("description") or ""
    default = one.get("default", one.get("schema", {}).get("default"))
    return text if default is None else f"{text} Default: {default}.".lstrip()


def _kind(schema: dict[str, Any]) -> str:
    """Describe the type of a value, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#value-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return " or ".join(escape(repr(x)) for x in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(schema.get("format") or schema.get("type") or "anything")
