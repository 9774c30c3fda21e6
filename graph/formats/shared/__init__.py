"""What readers and writers of other frameworks' files share: attributes, op tables, rows."""
