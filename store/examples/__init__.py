"""Complete example programs, part of the package so that an installed wheel contains them."""
