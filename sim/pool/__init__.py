"""The pool simulator: the live scheduler's own core with simulated replicas, baselines and workloads."""
