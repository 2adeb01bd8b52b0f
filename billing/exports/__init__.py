"""Exports: data sets of finance as files, and where they are kept."""
