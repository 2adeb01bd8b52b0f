"""Benchmarks, which compare alternatives side by side in one run."""
