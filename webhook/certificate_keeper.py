"""Keeps the webhook's own certificates: in a Secret that all replicas share, trusted through ``caBundle``.

The main program runs it unless another program, such as cert-manager, provides the certificates.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from dradriver.api.base.jsonpatch import Patch
from dradriver.errors import DriverError
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.errors import ApiError
from dradriver.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource
from webhook import certificates, tls

logger = logging.getLogger(__name__)

PERIOD_S: Final = 5.0
RUN_S: Final = 30.0  # a run with an outdated picture ends long before certificates.SETTLE
_ATTEMPTS: Final = 5


def utc_now() -> datetime.datetime:
    """Return the present time in UTC."""
    return datetime.datetime.now(datetime.UTC)


class Keeper:
    """Keeps three things current: the Secret, the webhook configurations' ``caBundle``, and the served certificate.

    Replicas need no leader. Each write names the version that it is based on. If another replica wrote first, the write
    fails. Then this replica reads the Secret again and uses the certificates of the other replica.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        secret: str,
        service: str,
        configurations: Mapping[Resource, str],
        context: ssl.SSLContext,
        now: Callable[[], datetime.datetime] = utc_now,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._hosts = (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")
        self._configurations = dict(configurations)
        self._context = context
        self._now = now
        self._served: certificates.Bundle | None = None  # the certificates that are served; None at first

    def ready(self) -> bool:
        """Return whether a valid certificate is served whose authority the API server trusts.

        If not, the API server cannot call the webhook.
        """
        return self._served is not None and self._now() < certificates.expires(self._served)

    async def run(self) -> None:
        """Run ``step`` every few seconds for ever. An error that repeats is logged once."""
        last = ""
        while True:
            try:
                async with asyncio.timeout(RUN_S):
                    await self.step()
                last = ""
            except (DriverError, TimeoutError) as error:
                text = str(error) or f"not done within {RUN_S:g} s"
                if text != last:
                    logger.warning("The certificates of the webhook cannot be renewed: %s", text)
                last = text
            await asyncio.sleep(PERIOD_S)

    async def step(self) -> None:
        """Renew the certificates if they are due, and serve the current one.

        An authority is published for the API server before a certificate that it issued is served.

        Raises:
            ApiError: The API server refused; the server continues with its present certificate.
            Unreachable: The API server does not answer.
            DriverError: Another writer changes the Secret again and again.
        """
        # 1. Read the Secret, and write a renewed bundle. Another replica may write first: then read again.
        for _ in range(_ATTEMPTS):
            secret = await self._read_secret()
            bundle = certificates.from_data((secret or {}).get("data") or {})
            if bundle is not None and (trusted := certificates.trusted(bundle)):
                # First of all: an authority may sign only after this has succeeded for it.
                await self._publish_authorities(trusted)
            new_bundle = certificates.renew(bundle, now=self._now(), hosts=self._hosts)
            # ``renew`` returns an equal bundle if nothing is due.
            if new_bundle == bundle or await self._write_secret(new_bundle, secret):
                break
        else:
            raise DriverError(f"secret {self._namespace}/{self._secret} is changed by another writer all the time")

        # 2. Publish a new authority, then serve the certificate.
        if new_bundle != bundle:
            await self._publish_authorities(new_bundle.authorities)
        if new_bundle != self._served:
            tls.load(self._context, certificate=new_bundle.certificate, key=new_bundle.key)
            logger.info("serving a certificate that ends %s", certificates.expires(new_bundle).isoformat())
            self._served = new_bundle

    async def _read_secret(self) -> dict[str, Any] | None:
        try:
            return await self._client.get(SECRETS, self._secret, namespace=self._namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _write_secret(self, bundle: certificates.Bundle, old: dict[str, Any] | None) -> bool:
        """Write the certificates into the Secret. Return false if the Secret was changed or deleted meanwhile.

        Args:
            bundle: The certificates and keys.
            old: The Secret that is replaced; None to create it.
        """
        data = certificates.to_data(bundle)
        owners = await self._owners() if old is None else []
        try:
            if old is None:
                metadata = {"name": self._secret, "namespace": self._namespace, "ownerReferences": owners}
                secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
                await self._client.create(SECRETS, secret)
            else:
                await self._client.update(SECRETS, old | {"data": (old.get("data") or {}) | data})
        except ApiError as error:
            if error.conflict or error.already_exists or error.not_found:
                return False
            raise
        logger.info("wrote new certificates to secret %s/%s", self._namespace, self._secret)
        return True

    async def _owners(self) -> list[dict[str, Any]]:
        """Return the owner references for a new Secret: its owner is the first webhook configuration.

        An uninstallation deletes this configuration, and Kubernetes then deletes the Secret. Without the configuration
        no new Secret is created.

        Raises:
            ApiError: The configuration does not exist (yet, or any more), or the API server refuses.
            Unreachable: The API server does not answer.
        """
        for resource, name in self._configurations.items():
            found = await self._client.get(resource, name)
            uid = found["metadata"]["uid"]
            return [{"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "uid": uid}]
        return []

    async def _publish_authorities(self, authorities: str) -> None:
        """Set ``caBundle`` in the webhook configurations to ``authorities`` if it differs.

        It differs after a new installation, and after an upgrade that reset it.
        """
        wanted = base64.b64encode(authorities.encode()).decode()
        for resource, name in self._configurations.items():
            configuration = await self._client.get(resource, name)
            patch = Patch()
            for i, hook in enumerate(configuration.get("webhooks") or []):
                if (hook.get("clientConfig") or {}).get("caBundle") != wanted:
                    patch.test("webhooks", i, "name", value=hook.get("name"))
                    patch.add("webhooks", i, "clientConfig", "caBundle", value=wanted)
            if len(patch):
                await self._client.patch(resource, name, patch, kind=PatchKind.JSON)
                logger.info("set caBundle of %s %s", resource.kind, name)


def configurations(*, mutating: str, validating: str) -> dict[Resource, str]:
    """Return the names of the webhook configurations that get a ``caBundle``, by resource.

    Args:
        mutating: The name of the MutatingWebhookConfiguration; empty for none.
        validating: The name of the ValidatingWebhookConfiguration; empty for none.
    """
    named = {MUTATING_WEBHOOKS: mutating, VALIDATING_WEBHOOKS: validating}
    return {resource: name for resource, name in named.items() if name}
