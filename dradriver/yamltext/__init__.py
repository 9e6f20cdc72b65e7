"""YAML that people write, as typed data: what is wrong is said with file, line and place, and what to write instead.

read     a text as dicts, lists and strings that know their lines, and as a type
value_hints  what to write instead of a value that a type refuses
bounded  a text without a schema, within bounds of levels and values
"""
