"""A program's output as a terminal would show it, line by line.

Progress bars redraw a line with carriage returns and backspaces. After a
prefix, or in a file, that is noise. Here such a line arrives once, as it looked
when it ended.
"""

import codecs
import re

# A control sequence, or the part of it that has arrived.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*(?P<final>[@-~])?)?")
_COLOUR = "m"
_ERASE_IN_LINE = "K"
_RESET = "\x1b[0m"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

# A program that never ends its line, or never resets a colour, must not fill
# our memory. A traceback as JSON, which is one line, has to fit.
_LONGEST_LINE = 128 * 1024
_LONGEST_COLOUR = 64


class TerminalLines:
    """Turns the bytes of one stream into the lines that they draw.

    Args:
        keep_colours: Whether colours stay in the lines. Other control
            sequences (to move up, to clear) are always removed.

    Attributes:
        redrawn: Whether the unfinished line was redrawn, like a progress bar.

    Threading: for one thread.
    """

    def __init__(self, *, keep_colours: bool) -> None:
        self.redrawn = False
        self._keep_colours = keep_colours
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        # Characters that may be the beginning of a control sequence.
        self._rest = ""
        # (colour, character) of each column; the next one goes to _column.
        self._cells: list[tuple[str, str]] = []
        self._column = 0
        self._colour = ""

    def feed(self, data: bytes) -> list[str]:
        """Takes the program's output; returns the lines that it ended."""
        text = self._rest + self._decode(data)
        self._rest = ""
        lines = []
        position = 0
        while position < len(text):
            if plain := self._plain_line(text, position):
                lines.append(plain.rstrip())
                position += len(plain)
            elif match := _SEQUENCE.match(text, position):
                if match.end() == len(text) and not match["final"]:
                    self._rest = match[0]
                else:
                    self._obey(match[0], match["final"])
                position = match.end()
            else:
                lines += self._write(text[position])
                position += 1
        return lines

    def unfinished(self) -> str:
        """The unfinished line, as it looks now."""
        parts = []
        colour = ""
        for its_colour, character in self._cells:
            if its_colour != colour:
                parts.append(_RESET if colour else "")
                parts.append(its_colour)
                colour = its_colour
            parts.append(character)
        return "".join(parts).rstrip() + (_RESET if colour else "")

    def finish(self) -> list[str]:
        """Returns the unfinished line, if any, at the end of the stream."""
        line = self._start_line()
        return [line] if line else []

    def _plain_line(self, text: str, position: int) -> str:
        """Returns the line at `position` if it is whole and plain."""
        if self._cells or self._colour:
            return ""
        line = text[position : text.find("\n", position) + 1]
        return "" if _CONTROL.search(line) else line

    def _write(self, character: str) -> list[str]:
        """Draws one character; returns the line if that ended it."""
        if character == "\n":
            return [self._start_line()]
        if character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        # Some spaces, and what joins the parts of a sign, are not printable.
        elif character == "\t" or (character >= " " and character != "\x7f"):
            ended = []
            if self._column >= _LONGEST_LINE:
                ended.append(self._start_line())
            self._put(character)
            return ended
        return []

    def _start_line(self) -> str:
        line = self.unfinished()
        self._cells.clear()
        self._column = 0
        self.redrawn = False
        return line

    def _put(self, character: str) -> None:
        cell = (self._colour, character)
        if self._column < len(self._cells):
            self._cells[self._column] = cell
            self.redrawn = True
        else:
            self._cells.append(cell)
        self._column += 1

    def _obey(self, sequence: str, final: str | None) -> None:
        parameters = sequence[2:-1]
        if final == _ERASE_IN_LINE:
            column = self._column
            start = {"": column, "0": column, "2": 0}.get(parameters)
            if start is not None:
                del self._cells[start:]
                missing = column - len(self._cells)
                self._cells += [("", " ")] * missing
        elif final == _COLOUR and self._keep_colours:
            if not parameters.strip("0;"):
                self._colour = ""
            elif len(self._colour) > _LONGEST_COLOUR:
                self._colour = sequence
            else:
                self._colour += sequence
