"""Integrations with other frameworks, each with the extra of the same name, and a store on collections of users."""
