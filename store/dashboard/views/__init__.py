"""Views: data shaped for the templates."""
