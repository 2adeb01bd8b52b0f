"""Backup and restore of a platform: its database, the usage that is not settled, its secrets.

A backup is a directory that `penstock restore` turns into a data directory. `docs/backup.md` says what it holds, what
can be lost, and how to restore to a point in time.
"""
