"""What each command of `remat` does, one file each, imported when the command runs."""
