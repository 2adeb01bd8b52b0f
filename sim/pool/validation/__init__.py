"""How far the step model can be believed: against published figures and against a measured engine."""
