"""Prompts as token blocks: tokenizers, chat templates, and the hasher that runs them in threads."""
