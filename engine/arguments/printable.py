"""Makes words of others, such as a server or a file, fit for a terminal."""


def printable(text: str) -> str:
    """Return a text without characters that would move the cursor or colour the terminal; its lines
    stay.
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
