"""The benchmark of exact and mirrored prefix knowledge: the cost of each, and the hit rate on two real engines."""
