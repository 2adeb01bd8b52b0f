"""Published routing policies, as their projects ship them, for comparison.

Each is written from the published algorithm; its docstring names project, file and date, and what had to be chosen.
All of them see prompts' true token counts, where ours works with the gateway's estimates.
"""
