"""One file per command group; each holds `app: typer.Typer`, imported when first used."""
