"""Pages for people: Jinja templates, one style sheet, own scripts and vendored ones, and nothing from elsewhere."""
