"""A simulation of the parts of DigitalOcean's API that Penstock uses, validated against the published
specification.
"""
