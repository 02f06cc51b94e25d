"""An STS that asks the cluster about a token and gives credentials for its service account.

::

    python -m tests.cluster.sts ADDRESS

It knows AssumeRoleWithWebIdentity.  The access key names the service account of the token.
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs

from tests.cluster.keys import PKI

PORT: Final = 4568
AUDIENCE: Final = "sts.amazonaws.com"
"""Audience of the tokens that EKS gives to pods."""
LIFETIME: Final = timedelta(hours=1)
GIVEN: Final = (
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
    "<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>any</SecretAccessKey><SessionToken>any</SessionToken>"
    "<Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
    "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)
REFUSED: Final = (
    "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>Incorrect token audience</Message></Error>"
    "</ErrorResponse>"
)


def access_key(namespace: str, account: str) -> str:
    return f"ASIA.{namespace}.{account}"


class Sts(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = _key_for(parse_qs(body.decode())["WebIdentityToken"][0], self.connection.getsockname()[0])
        ends = datetime.now(UTC) + LIFETIME
        text = (GIVEN.format(key=key, ends=ends) if key else REFUSED).encode()
        self.send_response(200 if key else 400)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _key_for(token: str, server: str) -> str:
    """Return the access key for a token, or nothing if the cluster does not know it or it is for another audience."""
    context = ssl.create_default_context(cafile=PKI / "ca.crt")
    context.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    request = urllib.request.Request(
        f"https://{server}:6443/apis/authentication.k8s.io/v1/tokenreviews",
        json.dumps(review).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, context=context, timeout=5) as answer:
        status = json.load(answer)["status"]
    return access_key(*status["user"]["username"].split(":")[2:]) if status.get("authenticated") else ""


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], PORT), Sts).serve_forever()
