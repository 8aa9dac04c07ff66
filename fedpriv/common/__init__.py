"""What every room may name, and what knows none of them."""
