"""Exports: data sets of finance as files, their schedules, and the stores that hold them.

Tables: export_definitions, export_runs, export_failures. May import billing.reports and what lies below it.
"""
