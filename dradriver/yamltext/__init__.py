"""Reads YAML files that people write, and converts them to typed data.

An error names the file, the line, the field and what to write instead.

read     reads a text that has a schema: first as dicts and strings with their lines, then as a Python type
value_hints  what to write instead of a value that does not fit its type
bounded  reads a text without a schema, with limits of nesting and of the number of values
"""
