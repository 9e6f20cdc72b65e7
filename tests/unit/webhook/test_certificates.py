"""Certificates at every moment of their lives, without a cluster: a clock and what should be."""

from __future__ import annotations

import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.x509 import verification

from webhook import certificates, tls
from webhook.certificates import AUTHORITY_LIFE, CERTIFICATE_LIFE, SETTLE, Bundle, renew

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
HOSTS = ("hook.gpu.svc", "hook.gpu.svc.cluster.local")


def trusts(authorities: str, certificate: str, *, now: datetime.datetime, host: str = HOSTS[0]) -> None:
    """Fail unless a strict verifier that trusts these authorities accepts the certificate at that time."""
    store = verification.Store(x509.load_pem_x509_certificates(authorities.encode()))
    verifier = verification.PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(host))
    verifier.verify(x509.load_pem_x509_certificate(certificate.encode()), [])


def authorities(bundle: Bundle) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle.authorities.encode())


@pytest.fixture(scope="module")
def first() -> Bundle:
    return renew(None, now=START, hosts=HOSTS)


def test_the_first_certificate_is_trusted_for_both_names(first: Bundle) -> None:
    for host in HOSTS:
        trusts(first.authorities, first.certificate, now=START, host=host)
    with pytest.raises(verification.VerificationError):
        trusts(first.authorities, first.certificate, now=START, host="other.gpu.svc")
    assert certificates.expires(first) == START + CERTIFICATE_LIFE
    assert authorities(first)[0].not_valid_after_utc == START + AUTHORITY_LIFE


def test_nothing_changes_before_it_is_due(first: Bundle) -> None:
    assert renew(first, now=START + 19 * DAY, hosts=HOSTS) == first


def test_a_certificate_is_renewed_after_two_thirds_of_its_life(first: Bundle) -> None:
    later = START + 20 * DAY + SETTLE
    second = renew(first, now=later, hosts=HOSTS)
    assert second.certificate != first.certificate
    assert second.authorities == first.authorities
    trusts(first.authorities, second.certificate, now=later)


def test_an_authority_is_replaced_in_three_steps(first: Bundle) -> None:
    before = renew(first, now=START + 240 * DAY, hosts=HOSTS)
    due = START + 244 * DAY
    overlap = renew(before, now=due, hosts=HOSTS)
    assert len(authorities(overlap)) == 2
    assert overlap.certificate == before.certificate, "the new authority is not known everywhere yet"
    assert renew(overlap, now=due + SETTLE / 2, hosts=HOSTS) == overlap

    settled = due + SETTLE
    switched = renew(overlap, now=settled, hosts=HOSTS)
    assert switched.authorities == overlap.authorities
    newest = authorities(switched)[-1]
    x509.load_pem_x509_certificate(switched.certificate.encode()).verify_directly_issued_by(newest)
    trusts(overlap.authorities, switched.certificate, now=settled)
    assert len(authorities(renew(switched, now=START + 364 * DAY, hosts=HOSTS))) == 2

    dropped = renew(switched, now=START + 366 * DAY, hosts=HOSTS)
    assert authorities(dropped) == [newest]


@pytest.mark.slow
def test_years_pass_with_a_trusted_certificate_each_day(first: Bundle) -> None:
    """Each day's certificate must be trusted by who last heard of the authorities the day before."""
    bundle = first
    for day in range(1, 3 * 365, 3):
        known, now = bundle.authorities, START + day * DAY
        bundle = renew(bundle, now=now, hosts=HOSTS)
        trusts(known, bundle.certificate, now=now)
        assert len(authorities(bundle)) <= 2


def test_after_a_long_sleep_all_is_new(first: Bundle) -> None:
    now = START + 400 * DAY
    woken = renew(first, now=now, hosts=HOSTS)
    assert len(authorities(woken)) == 1
    trusts(woken.authorities, woken.certificate, now=now)


def test_other_names_are_certified_at_once(first: Bundle) -> None:
    now = START + DAY
    other = renew(first, now=now, hosts=("new.gpu.svc",))
    trusts(first.authorities, other.certificate, now=now, host="new.gpu.svc")


@pytest.mark.parametrize("part", ["authorities", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("damage", ["", "nonsense", "of another"])
def test_damage_is_repaired(first: Bundle, part: str, damage: str) -> None:
    other = renew(None, now=START, hosts=HOSTS)
    fields = {name: getattr(first, name) for name in Bundle.__struct_fields__}
    fields[part] = getattr(other, part) if damage == "of another" else damage
    now = START + DAY
    repaired = renew(Bundle(**fields), now=now, hosts=HOSTS)
    trusts(repaired.authorities, repaired.certificate, now=now)
    tls.load(tls.server_context(), certificate=repaired.certificate, key=repaired.key)
    if part == "authority_key":
        assert repaired.certificate == first.certificate, "what is served stays good while its authority is trusted"
    settled = now + 2 * SETTLE
    trusts(repaired.authorities, renew(repaired, now=settled, hosts=HOSTS).certificate, now=settled)


def test_the_secret_keeps_everything(first: Bundle) -> None:
    assert certificates.from_data(certificates.to_data(first)) == first
    for key in ("ca.crt", "ca.key", "tls.crt", "tls.key"):
        data = certificates.to_data(first)
        assert certificates.from_data(data | {key: "#"}) is None
        del data[key]
        assert certificates.from_data(data) is None


def test_a_bad_pair_leaves_the_live_context_as_it_was(first: Bundle) -> None:
    other = renew(None, now=START, hosts=HOSTS)
    context = tls.server_context()
    tls.load(context, certificate=first.certificate, key=first.key)
    for certificate, key in ((other.certificate, first.key), ("", ""), (first.certificate, "nonsense")):
        with pytest.raises(ssl.SSLError):
            tls.load(context, certificate=certificate, key=key)
    assert served(context) == first.certificate


def served(context: ssl.SSLContext) -> str:
    """Return the certificate that a handshake with this context shows."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (near, far, near, far, near):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    shown = near.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown)
