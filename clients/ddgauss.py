"""The distributed discrete Gaussian, client half (P. Kairouz, Z. Liu, T. Steinke, ICML 2021, arXiv 2102.06387).

The client adds the noise, in whole numbers; a secure sum hides them from everybody; the server and whoever looks on
learn the sum over those who stayed, and who they were. `min_replies` is the floor below which no sum is opened, and
`colluders` of these may tell their noise.

Symbols: c -> clip_norm, gamma -> `SumGrid.step`, sigma -> noise_multiplier * clip_norm, beta -> `whole_numbers.BETA`,
m = 2^bits, Delta_2 -> 2 G (`SumGrid.event`), tau -> `discrete_gaussian.closeness`.

Where this departs from the print:
- Rotation in blocks of 2^12 to 2^16: one large rotation would pad 80,202 coordinates to 131,072.
- Neighbours replace a client's data, so a sum moves by twice the norm; the paper adds or removes a client.
- tau has the constants of the proof in `fedpriv.privacy.integer_laws`, and counts the same noises as sigma does.
Published and repaired are the same.
"""

from fedpriv.client.gaussian import WholeGaussianClient


class DDGaussClient(WholeGaussianClient):
    """Clip, rotate, round conditionally, add N_Z(0, (sigma/gamma)^2) to each coordinate, reduce modulo 2^bits."""

    law = "gaussian"
    in_rows = True
