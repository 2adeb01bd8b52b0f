"""Providers of hosts: desired hosts in, observed hosts out, through one interface, with every call written down."""
