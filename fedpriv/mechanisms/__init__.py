"""Pure mathematics of clipping, noise and quantisation: tensors and an explicit noise source in, tensors out."""
