"""The simulated engine: vLLM's HTTP API over a step-time model. It always says that it is simulated.

Reading order: blocks.py (KV block pool with prefix cache), model.py (one step at a time, pure), text.py (tokens and
words), loop.py (the model in real time), schemas.py and chunks.py (vLLM's shapes), server.py (HTTP).
"""
