"""Validates the step model against published figures and against a measured engine."""
