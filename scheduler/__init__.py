"""Places requests on replicas."""
