"""Schemathesis over a running API: requests made from an OpenAPI document, and what is wrong with their answers.

Of every operation all boundaries of its schemas are tried (Schemathesis's coverage phase), then `examples` drawn
requests. Half of them break the schema on purpose. The same document and seed give the same requests, except for ids.
"""

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from jsonschema import Draft202012Validator
from schemathesis.config import HealthCheck, SchemathesisConfig
from schemathesis.engine import events, from_schema

SEED = 20261123
ALL = ["coverage", "fuzzing"]
"""Phases of Schemathesis: the boundaries of every schema, and drawn requests."""
DRAWN = ["fuzzing"]
NO_FAULT = {"payments_off", "billing_unavailable", "billing_account_busy", "hub_unreachable"}
"""Codes of documented refusals with 503 (529 for messages): no Stripe is configured, no hub is reached, and the
machine is too busy."""
CHECKS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
]  # fmt: skip
TIMEOUT_S = 120
"""Seconds for one answer, so that the machine's speed does not matter."""
_SHOWN = 700
"""Characters of a request and of an answer in a report."""


@dataclass(frozen=True)
class Wrong:
    """An answer that the document does not allow."""

    operation: str
    check: str
    told: str
    status: int
    request: str
    answer: str

    def __str__(self) -> str:
        return (
            f"{self.operation}: {self.check}: {self.told}\n  {self.request}\n  -> {self.status} {self.answer}"
        )


@dataclass
class Fuzzed:
    """The result of a run."""

    wrong: list[Wrong] = field(default_factory=list)
    """The first of each kind, by operation."""
    errors: list[str] = field(default_factory=list)
    """Operations for which no request could be made."""
    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Answers of each operation by status."""

    @property
    def report(self) -> str:
        """All that is wrong; empty when nothing is."""
        return "\n".join([*map(str, self.wrong), *self.errors])

    def never(self, statuses: range) -> set[str]:
        """Return the operations that never answered with one of these statuses."""
        return {name for name, seen in self.statuses.items() if not any(each in statuses for each in seen)}


@dataclass
class Fuzzer:
    """How one API is fuzzed."""

    url: str
    credential: Callable[[], str]
    """Returns what requests of the next operation authenticate with; called before each operation."""
    examples: int
    phases: list[str]
    check: Callable[[str, str, int, Mapping[str, str], bytes], str] | None = None
    """Judges path template, method, status, headers and body in place of Schemathesis; "" = right."""
    prefix: str = ""
    """Stands before the paths of the document."""
    header: tuple[str, str] = ("Authorization", "Bearer {}")
    """The header of the credential, and its form."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of every request."""

    def run(self, document: dict[str, Any], paths: str) -> Fuzzed:
        """Fuzz the operations whose path matches the expression `paths`; "" = all."""
        schema = self._schema(document, paths)
        found, known = Fuzzed(), set[tuple[str, str, str]]()
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError):
                found.errors.append(f"{event.label}: {event.value}")
            if not isinstance(event, events.ScenarioFinished):
                continue
            for case_id, exchange in event.recorder.interactions.items():
                if exchange.response is None:
                    found.errors.append(f"{event.label}: no answer")
                    continue
                found.statuses[event.label or ""][exchange.response.status_code] += 1
                for each in self._judged(event.recorder, case_id):
                    if (kind := (each.operation, each.check, each.told[:60])) not in known:
                        known.add(kind)
                        found.wrong.append(each)
        return found

    def _schema(self, document: dict[str, Any], paths: str) -> Any:
        config = SchemathesisConfig(seed=SEED, suppress_health_check=[HealthCheck.all])
        schema = schemathesis.openapi.from_dict(document, config=config)
        project = schema.config
        project.update(
            base_url=self.url + self.prefix,
            headers=dict(self.headers),
            continue_on_failure=True,
            request_timeout=TIMEOUT_S,
        )
        project.generation.update(
            max_examples=self.examples, deterministic=True, no_shrink=True, database="none",
            with_security_parameters="coverage" in self.phases,
        )  # fmt: skip
        project.phases.update(phases=self.phases)
        project.checks.update(included_check_names=CHECKS)
        self._authenticate(schema)
        return schema.include(path_regex=paths) if paths else schema

    def _authenticate(self, schema: Any) -> None:
        fuzzer = self
        latest = {"operation": "", "value": ""}

        @schema.auth(refresh_interval=None)
        class _Credential:
            def get(self, case: Any, context: Any) -> str:
                if latest["operation"] != context.operation.label:
                    latest.update(operation=context.operation.label, value=fuzzer.credential())
                return latest["value"]

            def set(self, case: Any, data: str, context: Any) -> None:
                name, form = fuzzer.header
                case.headers[name] = form.format(data)

    def _judged(self, recorder: Any, case_id: str) -> list[Wrong]:
        exchange = recorder.interactions[case_id]
        answer, case = exchange.response, recorder.cases[case_id].value
        status, body = answer.status_code, answer.content
        request = f"{exchange.request.method} {exchange.request.uri} {_text(exchange.request.body)}"

        def wrong(check: str, told: str) -> Wrong:
            return Wrong(recorder.label, check, told, status, request[:_SHOWN], _text(body))

        no_fault = status in (503, 529) and _code_of(body) in NO_FAULT
        if self.check is not None:
            if status >= 500 and not no_fault:
                return [wrong("server error", str(status))]
            headers = {name.lower(): values[0] for name, values in answer.headers.items()}
            told = self.check(case.operation.path, case.method, status, headers, body)
            return [wrong("documented", told)] if told else []
        failed = [
            each for each in recorder.checks.get(case_id, ())
            if each.failure_info and not (no_fault and each.name == "not_a_server_error")
        ]  # fmt: skip
        return [wrong(each.name, _told(each.failure_info.failure)) for each in failed]


def _told(failure: Any) -> str:
    return f"{failure.title}: {' '.join(failure.message.split())}"


def _code_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _text(body: Any) -> str:
    if body is None:
        return ""
    raw = body if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
    return raw[:_SHOWN].decode("utf-8", "replace")


def with_values(document: dict[str, Any], values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the document with the values that parameters and members of bodies of these names may have.

    So requests name things that exist. Schemathesis reads the schema of a stream as that of one event, which ours do
    not describe: it is left out.
    """
    found = copy.deepcopy(document)
    schemas = found["components"]["schemas"]
    for operations in found["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in values:
                    parameter["schema"] = {"enum": values[parameter["name"]]}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                for members in _members(schemas.get(name, {})):
                    members.update({name: {"enum": values[name]} for name in values.keys() & members.keys()})
            for answer in operation["responses"].values():
                answer.get("content", {}).get("text/event-stream", {}).pop("schema", None)
    return found


def _members(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The properties of a schema and of the parts that it is composed of."""
    parts = [each for kind in ("allOf", "anyOf", "oneOf") for each in schema.get(kind, ())]
    return [schema.get("properties", {}), *(found for part in parts for found in _members(part))]


class Documented:
    """What a document allows as answers, by path and method."""

    def __init__(self, document: dict[str, Any], prefix: str = "") -> None:
        """`prefix` stands before the paths of requests that this judges, as in a server's address."""
        self._document = document
        self._prefix = prefix
        self._validators: dict[str, Draft202012Validator] = {}

    def __call__(self, path: str, method: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """Return what is wrong with an answer; "" = nothing."""
        operation = self.operation(path, method)
        answers = operation["responses"]
        told = answers.get(str(status), answers.get(f"{status // 100}XX"))
        if told is None:
            return f"status {status} is not documented, {', '.join(answers)} are"
        content = told.get("content", {})
        kind = headers.get("content-type", "").partition(";")[0]
        if content and kind not in content:
            return f"content type {kind!r} is not documented, {', '.join(content)} are"
        if kind != "application/json" or "schema" not in content.get(kind, {}):
            return ""
        try:
            document = json.loads(body)
        except ValueError as error:
            return f"no JSON: {error}"
        wrong = next(self._validator(content[kind]["schema"]).iter_errors(document), None)
        return "" if wrong is None else f"{wrong.json_path}: {wrong.message}"[:_SHOWN]

    def operation(self, path: str, method: str) -> dict[str, Any]:
        """Return the operation of a request's path, which may name its parameters otherwise."""
        wanted = _shape(self._prefix + path)
        for known, operations in self._document["paths"].items():
            if _shape(known) == wanted and method.lower() in operations:
                return dict(operations[method.lower()])
        return {"responses": {"405": {}}}

    def _validator(self, schema: dict[str, Any]) -> Draft202012Validator:
        key = repr(schema)
        if key not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[key] = Draft202012Validator(whole)
        return self._validators[key]


def _shape(path: str) -> list[str]:
    return ["{}" if part.startswith("{") else part for part in path.partition("?")[0].strip("/").split("/")]
