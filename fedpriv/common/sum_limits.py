"""How wide a number of a secure sum may be."""

#: Bits of a whole number on the wire. A sum of residues is kept in 64 bits.
FEWEST_BITS, MOST_BITS = 6, 56
