"""The ``hostRouting`` config section, parsed into typed values; all problems are reported together.

``routing`` defines the section. ``validation`` parses it into attrs classes, and reports unknown,
missing and duplicate keys. ``values`` validates single values. ``documents`` loads JSON files.
"""
