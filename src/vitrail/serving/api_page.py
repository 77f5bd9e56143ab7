"""The page that lists all routes, from the OpenAPI document: no script, nothing from elsewhere."""

from collections.abc import Mapping
from typing import Any

from vitrail.pages.tables import render_table
from vitrail.pages.words import text


def render_api(document: Mapping[str, Any]) -> str:
    """The routes of an OpenAPI document, as HTML."""
    sections = []
    for title, prefix in (("Models", "/v1/models"), ("Galleries", "/v1/galleries"), ("Open Inference Protocol", "/v2")):
        rows = [
            row
            for path, methods in document["paths"].items()
            if path.startswith(prefix)
            for row in _rows(path, methods)
        ]
        sections.append(_section(title, rows))
    known = ("/v1/models", "/v1/galleries", "/v2")
    others = [
        row for path, methods in document["paths"].items() if not path.startswith(known) for row in _rows(path, methods)
    ]
    sections.append(_section("Others", others))
    info = document["info"]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Routes of {text(info["title"])}</title>
<link rel="stylesheet" href="/static/pages.css">
<link rel="stylesheet" href="/static/page.css">
</head>
<body>
<header>
<p class="kicker">vitrail serve, {text(info["version"])}</p>
<h1>Routes</h1>
<p class="lead">Images come as files of a form, <code>curl -F image=@cat.jpg ADDRESS</code>, in JSON as
<code>{{"images": ["BASE64"]}}</code>, or as they are, with their own content type. Words beside them stand in the form,
in the JSON or in the address. A key goes into the header <code>Authorization: Bearer KEY</code>. The whole document:
<a href="/openapi.json">openapi.json</a>.</p>
</header>
<main>
{"".join(sections)}</main>
<footer><a href="/">the page to try it</a></footer>
</body>
</html>
"""


def _rows(path: str, methods: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(f"{method.upper()} {path}", route.get("summary", ""), _words(route)) for method, route in methods.items()]


def _words(route: Mapping[str, Any]) -> str:
    """What may stand beside the images."""
    form = route.get("requestBody", {}).get("content", {}).get("multipart/form-data", {})
    properties = form.get("schema", {}).get("properties", {})
    return "; ".join(f"{key}: {told['description']}" for key, told in properties.items() if key != "image")


def _section(title: str, rows: list[tuple[str, str, str]]) -> str:
    num_columns = 3 if any(words for _, _, words in rows) else 2
    columns = ("route", "what it does", "words")[:num_columns]
    table = render_table([row[:num_columns] for row in rows], columns=columns)
    return f'<section class="routes"><h2>{text(title)}</h2>{table}</section>\n'
