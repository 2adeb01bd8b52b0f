"""The cluster in a box: the live scheduler's own core against simulated replicas, baselines and workloads."""
