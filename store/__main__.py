"""`python -m rollbook`, the same program as the command `rollbook`."""

from store.cli import main

if __name__ == "__main__":
    main()
