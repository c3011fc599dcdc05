"""`python -m protonce`."""

from protonce.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
