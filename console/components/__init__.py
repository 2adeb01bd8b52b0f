"""The console's own small vocabulary of parts; pages are composed of these and nothing else."""
