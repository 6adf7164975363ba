"""Define the version of the distribution, which every layer may import."""

VERSION = "0.1.0"
