"""Token blocks of prompts: chat templates, tokenizers, and the hasher that runs them in threads."""
