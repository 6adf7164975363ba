"""The ``hostRouting`` section of a JSON document, read into typed values, with all problems reported at once.

``routing`` has the section, ``schema`` the reader for any attrs class, ``values`` the rules of single values, and
``documents`` reads JSON files.
"""
