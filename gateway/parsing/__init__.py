"""From the bytes of a body to a prepared request: small bodies in the event loop, large ones in other processes."""
