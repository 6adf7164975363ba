"""The neighbours at the command line: their own words, and what other commands get from them."""
