"""The web console, a second skin over admin/ and the read sides."""
