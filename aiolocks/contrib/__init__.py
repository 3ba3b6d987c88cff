"""aiolocks where people work: each module needs the package that it is named after."""
