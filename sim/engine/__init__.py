"""The simulated engine: vLLM's HTTP API over a step-time model. Its responses state that it is simulated.

Reading order: step_model/ (batching, KV block pool, step time), model.py (requests with text, one step at a
time), text.py (tokens and words), loop.py (the model in real time), schemas.py and answer.py (vLLM's JSON),
server.py (HTTP).
"""
