"""Create a self-signed certificate for a server that lives as long as a test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path


def self_signed(directory: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """Return a server's context with a new certificate for ``host`` and localhost, and the file that clients trust.

    The files are created in ``directory``.  Raise RuntimeError if the package cryptography is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise RuntimeError("TLS needs the package `cryptography`: pip install cryptography") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fake-kinesis")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    denied = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    uses = x509.KeyUsage(digital_signature=True, key_cert_sign=True, **denied)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        # Python's own clients demand the next two from 3.13 on.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(uses, critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = directory / "certificate.pem", directory / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.touch(mode=0o600)
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context, public
