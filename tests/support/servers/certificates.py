"""A certificate for 127.0.0.1 that only those trust who are told to, for servers of tests.
[CO-16]
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def write_certificate(directory: Path) -> Path:
    """Key and certificate in one PEM file. `SSL_CERT_FILE` naming it makes clients trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    place = directory / "server.pem"
    place.write_bytes(private + certificate.public_bytes(pem))
    return place
