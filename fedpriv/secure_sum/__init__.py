"""Secure sums: masks that cancel, so that who adds up the vectors of many clients sees nothing but their sum."""
