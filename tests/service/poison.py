"""Items that break a service later, if they are let in: what each is, and what may be answered to it.

An item that is let in must be found, listed, read, changed and deleted like any other.
"""

LARGEST = 2**53 - 1


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


IDS = {
    "slash": "a/b",
    "like a picture": "x/image",
    "picture of a picture": "x/image/image",
    "newline": "x\ny",
    "newline at the end": "x/image\n",
    "carriage return": "x\r",
    "nul": "\0",
    "query": "x?kind=number",
    "fragment": "x#y",
    "percent": "100%",
    "encoded": "%2e%2e",
    "space": " ",
    "dots in between": "a/../b",
    "three dots": "...",
    "backslash": "..\\..",
    "a reviewer's": "review:0",
    "number in words": "7",
    "emoji": "\U0001f600",
    "right to left": "\u202eabc",
    "long": "ü" * 256,
    "largest": LARGEST,
    "least": -LARGEST,
}
"""They are taken, and can be used in every address."""

REFUSED = {
    "dot": {"id": "."},
    "dots": {"id": ".."},
    "empty": {"id": ""},
    "too long": {"id": "x" * 257},
    "too large": {"id": LARGEST + 1},
    "id with a surrogate": {"id": "\ud800"},
    "label with a surrogate": {"label": "\udfff"},
    "group with a surrogate": {"group": "a\ud800"},
    "payload with a surrogate": {"payload": {"path": "\ud800"}},
    "key with a surrogate": {"payload": {"\ud800": 1}},
    "unknown key with a surrogate": {"\ud800": 1},
    "250 lists": {"payload": {"x": nested(250)}},
    "a thousand lists": {"payload": {"x": nested(900)}},
    "not a number": {"payload": {"x": float("nan")}},
    "infinity": {"payload": {"x": float("inf")}},
}
"""They are refused."""

PAYLOADS = {
    "long path": {"path": "x" * 5000},
    "long parts": {"path": "/".join(["y" * 300] * 10)},
    "path with nul": {"path": "a\0b"},
    "path out": {"path": "../../etc/passwd"},
    "root": {"path": "/"},
    "loop": {"path": "loop/a.png"},
    "loop itself": {"path": "loop"},
    "folder": {"path": "."},
    "no text": {"path": ["a"]},
    "ninety lists": {"x": nested(90)},
    "large number": {"x": 10**400},
    "small numbers": {"x": [5e-324, -0.0, 1e308]},
    "names of ours": {"id": 1, "__class__": "x", "constructor": None, "": ""},
    "emoji": {"\U0001f600": "\U0001f600"},
}
"""They are taken; a path that leads nowhere is no picture."""

BODIES = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"\\ud800"',
    b"\xff\xfe",
    b'{"\\ud800": 1}',
    b'{"id": "\\ud800", "verdict": "accept"}',
    b'{"id": "\\u0000", "verdict": "relabel", "label": "\\ud800"}',
    b'{"with_reviews": true, "with_reviews": "\\udfff"}',
    b'{"vectors": [[1, 0, 0]], "k": 1e400}',
    b'{"vectors": [[1e308, 1e308, 1e308]]}',
    b'{"vectors": [[5e-324, 0, 0]]}',
    b'{"vectors": [[1, 0, 0]], "kappa": [1e308]}',
    b'{"vectors": [[1, 0, 0]], "kappa": [0], "novelty": [5e-324]}',
    b'{"vectors": [[NaN, 0, 0]]}',
    b'{"vectors": [[' + b"9" * 5000 + b", 0, 0]]}",
    b'{"label": ' + b"9" * 5000 + b"}",
    b'{"payload": ' + b"[" * 60_000,
    b'{"payload": ' + b'{"a":' * 100_000,
    b'{"items": ' + b"[" * 100_000,
    b'{"items": [' + b'{"vector": [1, 0, 0], "payload": {"path": "\\ud800"}},' * 2000,
    b'{"label": "' + b"\\u0000" * 100_000 + b'"}',
]
"""Bodies for any address, none of which is a defect of the service's."""
