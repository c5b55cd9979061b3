"""The data family: read a file with shell tools, write the answer."""
