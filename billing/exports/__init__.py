"""Exports: finance data sets as files, their schedules, and the stores of scheduled files.

Tables: export_definitions, export_runs, export_failures. May import billing.reports and what lies below it.
"""
