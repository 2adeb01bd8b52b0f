"""Acceptance of a GPU host before it serves: what its GPUs report, what they reach, and a verdict with reasons.

`readings` has what is read, `nvml`, `dcgm`, `nccl` and `bandwidth` read it, `rules` judge it as pure functions, `check`
runs all of them, and `record` keeps the result of a boot of the machine.
"""
