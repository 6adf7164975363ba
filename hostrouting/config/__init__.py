"""The ``hostRouting`` section of a JSON document, read into typed values; all problems are reported at once.

``routing`` has the section, ``schema`` reads it into attrs classes, ``values`` has the rules of single values, and
``documents`` reads JSON files.
"""
