"""`python -m rapport` is the command `rapport`. [UX-3]"""

from rapport.cli.main import main

if __name__ == "__main__":
    main()
