"""Background jobs: Celery application, schedule and tasks."""
