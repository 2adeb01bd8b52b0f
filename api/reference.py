"""Writes docs/reference/api.md: every route of the customer API with an example for curl, Python and Node.

`python -m api.reference --write` writes the page, without the option it is printed. The page comes from the OpenAPI
document that the API serves, so that it cannot differ from it; a test keeps the file fresh.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from api.app import create_app
from api.deps import Deps
from api.serve import _admin_routers
from core.settings import Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api.md"
METHODS = ("get", "post", "put", "patch", "delete")
OTHERS = ("/admin/", "/webhooks/")
"""Beginnings of the paths that are not the customers'."""
HELLO = {"role": "user", "content": "Hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "penstock/tiny", "max_tokens": 32, "messages": [HELLO]},
    "/v1/completions": {"model": "penstock/tiny", "max_tokens": 32, "prompt": "Hello"},
    "/v1/embeddings": {"model": "penstock/tiny-embed", "input": ["Hello"]},
    "/v1/messages": {"model": "penstock/tiny", "max_tokens": 32, "messages": [HELLO]},
    "/v1/messages/count_tokens": {"model": "penstock/tiny", "messages": [HELLO]},
    "/v1/responses": {"model": "penstock/tiny", "max_output_tokens": 32, "input": "Hello"},
    "/v1/responses/input_tokens": {"model": "penstock/tiny", "input": "Hello"},
    "/v1/tokenize": {"model": "penstock/tiny", "messages": [HELLO]},
    "/v1/detokenize": {"model": "penstock/tiny", "tokens": [5, 6, 7]},
}
"""Bodies of the routes whose schemas carry no examples."""
SDK = {
    "post /v1/chat/completions": "chat.completions.create",
    "post /v1/completions": "completions.create",
    "post /v1/embeddings": "embeddings.create",
    "post /v1/responses": "responses.create",
    "post /v1/responses/input_tokens": "responses.input_tokens.count",
    "get /v1/models": "models.list",
    "get /v1/models/{model}": "models.retrieve",
}
"""Routes for which OpenAI's SDKs have a method."""
PATH_VALUES = {"model": "penstock/tiny"}
"""Examples of path parameters; of others the name in capitals."""
HEAD = """\
# API reference

This page is made from the API's own OpenAPI document by `python -m api.reference --write`.
[The customer API](../api.md) explains keys, errors, limits and what is billed. The examples read the key from
`PENSTOCK_API_KEY`, and the token of a member or an organisation from `PENSTOCK_TOKEN`. Python uses the packages openai
and httpx, Node the package openai and its own `fetch`.
"""
BASE = "http://127.0.0.1:8000"


def document() -> dict[str, Any]:
    """The OpenAPI document of the customers' routes. No service is connected to."""
    settings = Settings(
        database_url="postgresql://nobody:nothing@127.0.0.1:1/none",
        redis_url="redis://127.0.0.1:1/0",
        internal_token=SecretStr("none"),
        key_pepper=SecretStr("none"),
        engine_key=SecretStr("none"),
    )
    deps = Deps(settings, CollectorRegistry())
    return create_app(deps, _admin_routers(deps)).openapi()


def page(openapi: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    sections = [
        _section(openapi, path, method, operations[method])
        for path, operations in sorted(openapi["paths"].items())
        if not path.startswith(OTHERS)
        for method in METHODS
        if method in operations
    ]
    return "\n".join([HEAD, *sections])


def _section(openapi: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = [each for each in operation.get("parameters", []) if each["in"] in ("path", "query")]
    schema = _body_schema(openapi, operation)
    body = BODIES.get(path) or (None if schema is None else _example(openapi, schema))
    parts = [f"## {method.upper()} {path}", _sentence(operation.get("summary", ""))]
    if description := operation.get("description", ""):
        parts.append(_sentence(" ".join(description.split())))
    if rows := [*_parameter_rows(openapi, parameters), *_field_rows(openapi, schema)]:
        parts.append("\n".join(["| name | in | type | |", "|---|---|---|---|", *rows]))
    url = re.sub(
        r"\{(\w+)(?::\w+)?\}", lambda match: PATH_VALUES.get(match[1], match[1].upper()), path
    ) + _query(openapi, parameters)
    secret = _secret(path, operation)
    examples = (
        ("sh", _curl(method, url, body, secret)),
        ("python", _python(f"{method} {path}", method, url, body, secret)),
        ("js", _node(f"{method} {path}", method, url, body, secret)),
    )
    parts += [f"```{language}\n{text}\n```" for language, text in examples]
    return "\n\n".join(parts) + "\n"


def _secret(path: str, operation: dict[str, Any]) -> str:
    """The environment variable with what a route asks for; empty when it asks for nothing."""
    if not operation.get("security"):
        return ""
    return "PENSTOCK_TOKEN" if path.startswith("/v1/organization") else "PENSTOCK_API_KEY"


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _body_schema(openapi: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else _resolved(openapi, content["schema"])


def _resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a `$ref` refers to, or the first alternative that is not null."""
    while True:
        if "$ref" in schema:
            schema = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            continue
        choices = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
        if not choices:
            return schema
        schema = choices[0]


def _parameter_rows(openapi: dict[str, Any], parameters: list[dict[str, Any]]) -> list[str]:
    return [
        _row(openapi, each["name"], each["in"], each.get("schema", {}), each.get("required", False))
        for each in parameters
    ]


def _field_rows(openapi: dict[str, Any], schema: dict[str, Any] | None) -> list[str]:
    if schema is None:
        return []
    required = schema.get("required", ())
    return [
        _row(openapi, name, "body", field, name in required)
        for name, field in schema.get("properties", {}).items()
    ]


def _row(openapi: dict[str, Any], name: str, place: str, schema: dict[str, Any], required: bool) -> str:
    resolved = _resolved(openapi, schema)
    kind = resolved.get("type", "any")
    values = resolved.get("enum")
    about = schema.get("description") or resolved.get("description") or ""
    told = [
        "required" if required else "",
        "one of " + ", ".join(map(str, values)) if values else "",
        " ".join(about.split()),
    ]
    text = "; ".join(each for each in told if each).replace("|", "\\|")
    return f"| {name} | {place} | {kind if isinstance(kind, str) else ' or '.join(kind)} | {text} |"


def _example(openapi: dict[str, Any], schema: dict[str, Any]) -> Any:
    """An example of a schema: its own, or one of the required members."""
    if examples := schema.get("examples"):
        return examples[0]
    schema = _resolved(openapi, schema)
    if examples := schema.get("examples"):
        return examples[0]
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    match schema.get("type"):
        case "object":
            fields, required = schema.get("properties", {}), schema.get("required", ())
            chosen = required or [name for name, field in fields.items() if "examples" in field]
            return {name: _example(openapi, fields[name]) for name in chosen if name in fields}
        case "array":
            return [_example(openapi, schema.get("items", {}))]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return "..."


def _query(openapi: dict[str, Any], parameters: list[dict[str, Any]]) -> str:
    needed = [each for each in parameters if each["in"] == "query" and each.get("required")]
    pairs = [f"{each['name']}={_example(openapi, each.get('schema', {}))}" for each in needed]
    return "?" + "&".join(pairs) if pairs else ""


def _curl(method: str, url: str, body: Any, secret: str) -> str:
    verb = "" if method == "get" or (method == "post" and body is not None) else f"-X {method.upper()} "
    lines = [f'curl {verb}"{BASE}{url}"']
    if secret:
        lines.append(f'  -H "Authorization: Bearer ${secret}"')
    if body is not None:
        lines += ['  -H "Content-Type: application/json"', f"  -d '{json.dumps(body)}'"]
    return " \\\n".join(lines)


def _python(route: str, method: str, url: str, body: Any, secret: str) -> str:
    if route in SDK:
        given = ", ".join(f"{name}={value!r}" for name, value in (body or {}).items())
        given = given or (f'"{PATH_VALUES["model"]}"' if "{" in route else "")
        return (
            "import os\n\nfrom openai import OpenAI\n\n"
            f'client = OpenAI(base_url="{BASE}/v1", api_key=os.environ["PENSTOCK_API_KEY"])\n'
            f"print(client.{SDK[route]}({given}))"
        )
    given = f'"{BASE}{url}"'
    if secret:
        given += f', headers={{"Authorization": "Bearer " + os.environ["{secret}"]}}'
    if body is not None:
        given += f", json={body!r}"
    head = "import os\n\nimport httpx\n\n" if secret else "import httpx\n\n"
    return f'{head}print(httpx.request("{method.upper()}", {given}).text)'


def _node(route: str, method: str, url: str, body: Any, secret: str) -> str:
    if route in SDK:
        given = json.dumps(body) if body else f'"{PATH_VALUES["model"]}"' if "{" in route else ""
        return (
            'import OpenAI from "openai";\n\n'
            f'const client = new OpenAI({{ baseURL: "{BASE}/v1", apiKey: process.env.PENSTOCK_API_KEY }});\n'
            f"console.log(await client.{SDK[route]}({given}));"
        )
    headers = [f'Authorization: "Bearer " + process.env.{secret}'] if secret else []
    if body is not None:
        headers.append('"Content-Type": "application/json"')
    options = [f'method: "{method.upper()}"']
    if headers:
        options.append(f"headers: {{ {', '.join(headers)} }}")
    if body is not None:
        options.append(f"body: JSON.stringify({json.dumps(body)})")
    return (
        f'const answer = await fetch("{BASE}{url}", {{ {", ".join(options)} }});\n'
        "console.log(await answer.text());"
    )


def main() -> int:
    """Print the page, or write it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} instead of printing it")
    text = page(document())
    if parser.parse_args().write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
