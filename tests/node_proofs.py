"""How a node proves its key to a SuperLink."""

from __future__ import annotations

from base64 import b64encode

from cryptography.hazmat.primitives.asymmetric import ec


def signed(key: ec.EllipticCurvePrivateKey, claimed: ec.EllipticCurvePublicKey | None = None) -> list[str]:
    """Headers with which a node proves its key; ``claimed``: whose it says it has."""
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    timestamp = now().isoformat()
    public = public_key_to_bytes(claimed or key.public_key())
    proof = sign_message(key, timestamp.encode())
    return [
        f"flwr-public-key={b64encode(public).decode()}",
        f"flwr-signature={b64encode(proof).decode()}",
        f"flwr-timestamp={timestamp}",
    ]
