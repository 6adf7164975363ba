"""Draw the output of the demo:  ./run python docs/make_demo.py > docs/demo.svg."""

from __future__ import annotations

from hostrouting.cli.demo import story
from hostrouting.cli.drawn import PICTURE_COLUMNS, picture
from hostrouting.cli.output import say

if __name__ == "__main__":
    lines = "\n".join(story(PICTURE_COLUMNS)).split("\n")
    say(picture([*lines], "hostrouting demo"))
