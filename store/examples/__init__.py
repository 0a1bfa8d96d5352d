"""Complete example programs. They belong to the package, so that an installed wheel contains them."""
