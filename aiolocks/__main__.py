"""`python -m aiolocks` is the same as the `aiolocks` command."""

from .cli import main

if __name__ == "__main__":
    main()
