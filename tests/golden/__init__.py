"""What the project writes for others to read, word for word: objects, ledgers, CDI specifications, JSON, gangs of pods.

A change of the code that is to change none of it changes no file here. ``python -m tests.golden`` writes them anew
where one is meant to change; then the diff is the change.
"""
