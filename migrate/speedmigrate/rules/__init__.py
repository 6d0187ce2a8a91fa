"""One module a rule, found by `pkgutil`; nothing else lives here."""
