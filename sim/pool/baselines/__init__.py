"""Published routing policies, as their projects ship them, for comparison.

Each is written from the published algorithm; its docstring names project, file and date, and the choices made
here. All of them receive prompts' true token counts, whereas Penstock uses the gateway's estimates.
"""
