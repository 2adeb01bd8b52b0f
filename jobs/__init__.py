"""Celery application, beat schedule and thin tasks."""
