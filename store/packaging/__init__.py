"""The build of the distribution: the package under its public name `rollbook`, and the alias `store`."""
