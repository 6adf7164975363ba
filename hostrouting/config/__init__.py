"""The ``hostRouting`` config section, parsed into typed values; all problems are reported together.

``routing`` defines the section, ``schema`` parses it into attrs classes, ``values`` validates
single values, and ``documents`` loads JSON files.
"""
