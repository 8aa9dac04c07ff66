"""What a real node allows and remembers."""
