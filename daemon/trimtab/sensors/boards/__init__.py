"""Board profiles as YAML files: what the zones of a board mean, and which of them lie."""
