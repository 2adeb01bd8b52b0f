"""The bench of the books: the work that must not grow with history, at 10,000 organisations and many usage rows."""
