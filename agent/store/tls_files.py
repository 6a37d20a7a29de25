"""The files for TLS, checked before a connection needs them: a wrong one would only look as if nobody answered, and a
missing key would end the whole process."""

from __future__ import annotations

import ssl

from softrun.agent.errors import UsageError
from softrun.agent.store.given_files import content_of


def check_tls_files(ca_cert: str | None, ssl_cert: str | None, ssl_cert_key: str | None) -> None:
    """Return if these files, if they are given, can be used. Raises UsageError with one line that names the file.

    Whether a certificate is valid today, and whom it is for, is seen in the handshake.
    """
    if ca_cert is not None:
        _check_certificates("ca_cert", ca_cert)
    if ssl_cert is not None and ssl_cert_key is None:
        raise UsageError(f"--rdzv_conf has ssl_cert={ssl_cert} without its key: give ssl_cert_key as well")
    if ssl_cert_key is not None and ssl_cert is None:
        raise UsageError(f"--rdzv_conf has ssl_cert_key={ssl_cert_key} without its certificate: give ssl_cert as well")
    if ssl_cert is not None and ssl_cert_key is not None:
        _check_certificates("ssl_cert", ssl_cert)
        _check_key(ssl_cert, ssl_cert_key)


def _check_certificates(key: str, name: str) -> None:
    content = content_of(key, name)  # there may be comments in any language in it
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii", "backslashreplace")
        )
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"--rdzv_conf {key}={name} holds no certificate ({_reason(error)}): give a file in PEM format"
        ) from error


def _check_key(ssl_cert: str, ssl_cert_key: str) -> None:
    content_of("ssl_cert_key", ssl_cert_key)
    passphrases: list[str] = []

    def passphrase() -> str:
        """Asked for if the key is encrypted; otherwise OpenSSL would ask on the terminal."""
        passphrases.append("")
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(ssl_cert, ssl_cert_key, passphrase)
    except (OSError, ValueError) as error:
        if passphrases:
            raise UsageError(
                f"--rdzv_conf ssl_cert_key={ssl_cert_key} is encrypted: give a key without a passphrase"
            ) from error
        if "MISMATCH" in str(error):
            raise UsageError(
                f"--rdzv_conf ssl_cert_key={ssl_cert_key} is not the key of ssl_cert={ssl_cert}: give the two that "
                "belong together"
            ) from error
        raise UsageError(
            f"--rdzv_conf ssl_cert_key={ssl_cert_key} holds no key ({_reason(error)}): give a file in PEM format"
        ) from error


def _reason(error: Exception) -> str:
    """What OpenSSL says, without the place in its source."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return said.partition(" (_ssl.c")[0]
