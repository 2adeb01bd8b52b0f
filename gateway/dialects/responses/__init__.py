"""POST /v1/responses: OpenAI's Responses API and Open Responses 2026-04-24, translated to and from chat."""
