"""Workloads: readers of public traces and generators."""
