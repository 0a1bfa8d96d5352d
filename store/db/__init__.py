"""Tables, SQL statements and database connections. Nearly all SQL of the package is in this folder."""
