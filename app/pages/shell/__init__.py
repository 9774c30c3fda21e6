"""What every page has: frame, style sheets and scripts, formatted quantities."""
