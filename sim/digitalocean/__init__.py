"""DigitalOcean's API as far as Penstock uses it, held to the published description."""
