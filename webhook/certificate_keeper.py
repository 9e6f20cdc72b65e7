"""Self-managed certificates: kept in a Secret that all replicas share, and trusted through ``caBundle``."""

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
    """Return the time by which certificates are kept: now, in UTC."""
    return datetime.datetime.now(datetime.UTC)


class Keeper:
    """Keeps the Secret, the ``caBundle`` of the webhook configurations and the served certificate right.

    Replicas need no leader: each write names the version that it is based on, and whoever comes second reads again and
    takes what the first one wrote.
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
        """Return whether the API server trusts the certificate that is served, and that has not expired."""
        return self._served is not None and self._now() < certificates.expires(self._served)

    async def run(self) -> None:
        """Keep the certificates for ever: run ``step`` every few seconds; an error that repeats is logged once."""
        last = ""
        while True:
            try:
                async with asyncio.timeout(RUN_S):
                    await self.step()
                last = ""
            except (DriverError, TimeoutError) as error:
                text = str(error) or f"not done within {RUN_S:g} s"
                if text != last:
                    logger.warning("certificates: %s", text)
                last = text
            await asyncio.sleep(PERIOD_S)

    async def step(self) -> None:
        """Renew the certificates if that is due, and serve the current one.

        The API server trusts an authority before a certificate of it is served.

        Raises:
            ApiError: The API server refused; the certificate served so far goes on.
            Unreachable: No answer from it.
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
            raise DriverError(f"secret {self._namespace}/{self._secret} is being changed by somebody else all the time")

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
        """Return whether the Secret now holds the bundle; false where another writer came first."""
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
        """Return with what a new Secret goes: an uninstallation takes the configuration, and none is made after it.

        Raises:
            ApiError: There is no such configuration (yet, or any more), or the API server refuses.
            Unreachable: No answer from it.
        """
        for resource, name in self._configurations.items():
            found = await self._client.get(resource, name)
            uid = found["metadata"]["uid"]
            return [{"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "uid": uid}]
        return []

    async def _publish_authorities(self, authorities: str) -> None:
        """Set ``caBundle`` where it differs, a fresh install's or one that an upgrade has reset."""
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
    """Return the webhook configurations whose certificates to keep, without those that have no name."""
    named = {MUTATING_WEBHOOKS: mutating, VALIDATING_WEBHOOKS: validating}
    return {resource: name for resource, name in named.items() if name}
