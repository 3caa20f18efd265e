"""`python -m mrv2lab`: the command line."""

from mrv2lab.cli import app

app()
