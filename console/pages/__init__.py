"""One file per page; each draws itself with `build(console, viewer, request)`."""
