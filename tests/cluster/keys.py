"""Keys, certificates and kubeconfigs of a cluster, made by openssl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Final

from tests.cluster.place import RUN, Place

PKI: Final = RUN / "pki"
USERS: Final = {
    "admin": "/O=system:masters/CN=admin",
    "controllers": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
}


def make_keys(control: Place, nodes: Sequence[Place], service: str) -> None:
    """Make what is not there yet.  ``service`` is the address of the API as a service."""
    PKI.mkdir(parents=True, exist_ok=True)
    if (PKI / "done").exists():
        return
    _openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=kubernetes-ca")
    _openssl("genrsa -out sa.key 2048")
    _openssl("rsa -in sa.key -pubout -out sa.pub")
    name = "kubernetes.default.svc.cluster.local"
    names = [f"DNS:{name.rsplit('.', cut)[0]}" for cut in range(5)]
    _certify("apiserver", "/CN=kube-apiserver", control, [f"IP:{control.address}", f"IP:{service}", *names])
    for user, subject in USERS.items():
        _certify(user, subject, control)
    for node in nodes:
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        _certify(node.name, subject, control, [f"DNS:{node.name}", f"IP:{node.address}"])
    (PKI / "done").touch()


def kubeconfig(name: str) -> str:
    """Return the option by which Kubernetes' programs act as a user or node."""
    return f"--kubeconfig={PKI / name}.kubeconfig"


def _certify(name: str, subject: str, control: Place, names: Sequence[str] = ()) -> None:
    """Make a key, its certificate, and a kubeconfig with both."""
    _openssl(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj {subject}")
    also = f"subjectAltName={','.join(names)}\n" if names else ""
    (PKI / f"{name}.ext").write_text(f"extendedKeyUsage=serverAuth,clientAuth\n{also}")
    ca = "-CA ca.crt -CAkey ca.key -CAcreateserial -days 30"
    _openssl(f"x509 -req -in {name}.csr {ca} -extfile {name}.ext -out {name}.crt")
    cluster = {"server": f"https://{control.address}:6443", "certificate-authority": str(PKI / "ca.crt")}
    user = {"client-certificate": str(PKI / f"{name}.crt"), "client-key": str(PKI / f"{name}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (PKI / f"{name}.kubeconfig").write_text(json.dumps(config))


def _openssl(order: str) -> None:
    subprocess.run(["openssl", *order.split()], cwd=PKI, check=True, capture_output=True)
