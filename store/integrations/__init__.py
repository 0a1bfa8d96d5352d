"""Integrations with other frameworks, each installed by its extra, and a store on collections that users supply."""
