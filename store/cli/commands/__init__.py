"""The commands of `rollbook`. A command is declared in the same module as the code that the command runs."""
