"""Command line of badpo: each command parses its arguments, calls one function and prints the result."""
