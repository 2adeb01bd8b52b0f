"""TLS between Penstock's own processes: private authorities, certificates that they issue, contexts that trust them.

The platform's authority signs certificates of schedulers, and each host that has joined has an authority for its own
engines alone. Certificates name NAME or ENGINE_NAME and not an address, so that a scheduler or host may move: who has
one that the authority has signed is what it is the authority of. Only TLS 1.3 is spoken.
"""

import ssl
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from core.errors import InvalidRequest

NAME = "scheduler.penstock.internal"
ENGINE_NAME = "engine.penstock.internal"
AUTHORITY_LIVES = timedelta(days=3650)
CERTIFICATE_LIVES = timedelta(days=30)
_EARLIER = timedelta(hours=1)
"""How long before its making a certificate is valid, for clocks that are late."""


class Issued:
    """A certificate and its key, in PEM."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.certificate, self.key = certificate, key


def new_authority(password: bytes, now: datetime, called: str = "Penstock schedulers") -> Issued:
    """A new authority, whose key is encrypted with `password`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named(called)
    builder = _builder(name, name, key.public_key(), now, AUTHORITY_LIVES)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    encryption = serialization.BestAvailableEncryption(password)
    return Issued(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key, encryption))


def issue(
    authority: Issued, password: bytes, now: datetime, *, name: str = NAME, key_pem: bytes = b""
) -> Issued:
    """A certificate of a scheduler, or of what else `name` says, for a new key, or for the one in `key_pem`.

    Raises ValueError when `password` is not that of the authority's key, or a key cannot be read.
    """
    signer = serialization.load_pem_private_key(authority.key, password)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not one for ECDSA")
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = (
        serialization.load_pem_private_key(key_pem, None)
        if key_pem
        else ec.generate_private_key(ec.SECP256R1())
    )
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not one for ECDSA")
    builder = _builder(_named(name), issuer.subject, key.public_key(), now, CERTIFICATE_LIVES)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False)
    certificate = builder.sign(signer, hashes.SHA256())
    return Issued(_pem(certificate), _key_pem(key, serialization.NoEncryption()))


def fingerprint(authority: bytes) -> str:
    """SHA-256 of all certificates in PEM, in their order, in hex. Raises ValueError when there is none."""
    parsed = x509.load_pem_x509_certificates(authority)
    return sha256(b"".join(one.public_bytes(serialization.Encoding.DER) for one in parsed)).hexdigest()


def certificates_alone(authority: bytes) -> bytes:
    """The certificates that `fingerprint` covers, encoded anew. Raises ValueError when there is none.

    OpenSSL also trusts what stands in other blocks, such as TRUSTED CERTIFICATE: those are left out.
    """
    return b"".join(map(_pem, x509.load_pem_x509_certificates(authority)))


def ends_at(certificate: bytes) -> datetime:
    """When a certificate ends. Raises ValueError when it cannot be read."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def server_context() -> ssl.SSLContext:
    """A context for servers; `load` gives it a certificate, and another one later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def load(context: ssl.SSLContext, issued: Issued, directory: Path) -> None:
    """Let later connections use this certificate. OpenSSL reads files: they exist below `directory` meanwhile."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory, prefix=".tls-") as scratch:  # mode 0700
        certificate, key = Path(scratch) / "certificate", Path(scratch) / "key"
        certificate.write_bytes(issued.certificate)
        key.write_bytes(issued.key)
        context.load_cert_chain(certificate, key)


def client_context(authority: bytes) -> ssl.SSLContext:
    """A context that trusts servers whose certificates this authority, or bundle of them, has signed.

    The caller says how the server is called.

    Raises ValueError when `authority` holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=certificates_alone(authority).decode())
    return context


def blind_context() -> ssl.SSLContext:
    """A context that trusts any server, to ask for the authority whose fingerprint is known and for nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def read_authority(path: Path) -> bytes:
    """The certificates of a file. Raises InvalidRequest when it holds none."""
    try:
        return certificates_alone(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"PENSTOCK_SCHEDULER_CA: {path} holds no certificate: {error}") from None


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lives: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + lives)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
