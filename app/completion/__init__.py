"""Completion in bash, zsh and fish: a table of the commands, a script per shell, fast answers."""
