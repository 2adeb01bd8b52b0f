"""Free TCP ports for servers that a test starts."""

from core.child import free_port

__all__ = ["free_port"]
