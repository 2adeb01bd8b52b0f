"""The real vLLM, directly and through the platform that started it."""
