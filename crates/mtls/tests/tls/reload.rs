//! Replaces certificates while programs run.

use std::{
    fs::{self, Permissions},
    future::{Future, poll_fn},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    pin::pin,
    task::Poll,
    time::{Duration, SystemTime},
};

use crate::support::{BOUND, HOUR, Pki, TRUST_DOMAIN, bounded, host, listen, raw_client};
use mtls::{
    LiveCredentials, Role, Server, TlsSettings,
    authority::{Issued, Validity},
};
use test_clock::wait_until_async;

const PERIOD: Duration = Duration::from_millis(5);

/// Credentials that follow their files, and when they expire.
fn follow(settings: &TlsSettings, role: Role) -> (LiveCredentials, SystemTime) {
    let live = LiveCredentials::load(settings, &[role]).unwrap();
    tokio::spawn(live.clone().follow(PERIOD));
    let end = end(&live);
    (live, end)
}

fn end(live: &LiveCredentials) -> SystemTime {
    live.current().validity().not_after
}

/// Another certificate for the same holder with a different expiry.
fn renewed(pki: &Pki, role: Role, name: &str) -> Issued {
    pki.authority.issue(role, name, Validity::from_now(2 * HOUR)).unwrap()
}

async fn until_replaced(live: &LiveCredentials, before: SystemTime) {
    wait_until_async("the new certificate is in force", async || end(live) > before).await;
}

async fn until_problem(live: &LiveCredentials, words: &str) {
    wait_until_async(words, async || live.problem().is_some_and(|found| found.contains(words)))
        .await;
}

async fn until_no_problem(live: &LiveCredentials) {
    wait_until_async("nothing is wrong", async || live.problem().is_none()).await;
}

#[tokio::test]
async fn files_renamed_into_place_are_followed() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let (live, before) = follow(&settings, Role::Host);
    renewed(&pki, Role::Host, "a").save(pki.path(), "host-a").unwrap();
    until_replaced(&live, before).await;
    until_no_problem(&live).await;
}

/// The files are loaded again although a reload, not the previous check, read the change.
#[tokio::test]
async fn files_put_back_after_a_reload_are_followed() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let (live, before) = follow(&settings, Role::Host);
    let earlier = [&settings.certificate, &settings.key].map(|path| fs::read(path).unwrap());
    // No check happens in between: no other task runs before the next await.
    renewed(&pki, Role::Host, "a").save(pki.path(), "host-a").unwrap();
    live.reload().await;
    assert!(end(&live) > before);
    fs::write(&settings.certificate, &earlier[0]).unwrap();
    fs::write(&settings.key, &earlier[1]).unwrap();
    wait_until_async("the earlier ones are in force", async || end(&live) == before).await;
}

/// The certificate becomes valid soon, as on a machine whose clock is set after the start.
#[tokio::test]
async fn certificates_of_later_are_waited_for() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Dpu, "a");
    let validity = |not_before: SystemTime| Validity { not_before, not_after: not_before + HOUR };
    let save = |validity: Validity| {
        let issued = pki.authority.issue(Role::Dpu, "a", validity).unwrap();
        issued.save(pki.path(), "dpu-a").unwrap();
    };
    save(validity(SystemTime::now() - 2 * HOUR));
    let roles = [Role::Dpu];
    let mut loaded = pin!(LiveCredentials::load_when_valid(&settings, &roles, PERIOD));
    let waits = poll_fn(|context| Poll::Ready(loaded.as_mut().poll(context).is_pending())).await;
    assert!(waits, "the expired certificate is loaded");
    save(validity(SystemTime::now() - HOUR / 2));
    assert!(bounded(loaded).await.problem().is_none());
}

/// A renewal writes one file after the other.
#[tokio::test]
async fn unfinished_renewal_is_waited_for() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Dpu, "a");
    fs::remove_file(&settings.key).unwrap();
    let roles = [Role::Dpu];
    let mut loaded = pin!(LiveCredentials::load_when_valid(&settings, &roles, PERIOD));
    let waits = poll_fn(|context| Poll::Ready(loaded.as_mut().poll(context).is_pending())).await;
    assert!(waits, "a certificate without its key is loaded");
    let issued = pki.authority.issue(Role::Dpu, "a", Validity::from_now(HOUR)).unwrap();
    issued.save(pki.path(), "dpu-a").unwrap();
    assert!(bounded(loaded).await.problem().is_none());
}

#[tokio::test]
async fn a_swapped_symlink_is_followed() {
    let pki = Pki::new();
    let version = |name: &str, issued: &Issued| {
        let folder = pki.path().join(name);
        fs::create_dir(&folder).unwrap();
        issued.save(&folder, "tls").unwrap();
    };
    version("v1", &pki.issue(Role::Host, "a"));
    let data = pki.path().join("data");
    symlink("v1", &data).unwrap();
    let settings = TlsSettings {
        ca: pki.path().join("ca.crt"),
        certificate: data.join("tls.crt"),
        key: data.join("tls.key"),
        trust_domain: TRUST_DOMAIN.into(),
    };
    let (live, before) = follow(&settings, Role::Host);

    version("v2", &renewed(&pki, Role::Host, "a"));
    symlink("v2", pki.path().join("next")).unwrap();
    fs::rename(pki.path().join("next"), &data).unwrap();
    until_replaced(&live, before).await;
}

#[tokio::test]
async fn a_torn_replacement_waits_for_its_other_half() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let (live, before) = follow(&settings, Role::Host);
    let next = renewed(&pki, Role::Host, "a");

    fs::write(&settings.certificate, &next.certificate).unwrap();
    until_problem(&live, "belong to certificate").await;
    assert_eq!(end(&live), before);

    fs::write(&settings.key, &next.key).unwrap();
    until_replaced(&live, before).await;
    until_no_problem(&live).await;
}

#[tokio::test]
async fn readable_replacement_key_is_refused() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let (live, before) = follow(&settings, Role::Host);
    let next = renewed(&pki, Role::Host, "a");
    let open = pki.path().join("open.key");
    fs::write(&open, &next.key).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o644)).unwrap();
    fs::rename(&open, &settings.key).unwrap();
    fs::write(&settings.certificate, &next.certificate).unwrap();
    until_problem(&live, "has mode 0644").await;
    assert_eq!(end(&live), before);

    fs::set_permissions(&settings.key, Permissions::from_mode(0o600)).unwrap();
    until_replaced(&live, before).await;
    until_no_problem(&live).await;
}

/// Replaces a valid certificate, and expects `problem` and that the valid one stays.
async fn refused(replacement: impl FnOnce(&Pki, &Path), problem: &str) {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let (live, before) = follow(&settings, Role::Host);
    replacement(&pki, &settings.certificate);
    until_problem(&live, problem).await;
    assert_eq!(live.current().identity(), &host("a"));
    assert_eq!(end(&live), before);
}

#[tokio::test]
async fn invalid_replacement_keeps_the_old() {
    refused(|_, certificate| fs::write(certificate, "rubbish").unwrap(), "host-a.crt").await;
    refused(|_, certificate| fs::remove_file(certificate).unwrap(), "No such file").await;
    let old = |pki: &Pki, _: &Path| {
        let issued = pki.authority.issue(Role::Host, "a", crate::support::expired()).unwrap();
        issued.save(pki.path(), "host-a").unwrap();
    };
    refused(old, "expired on").await;
}

/// The CA's clock is ahead.
#[tokio::test]
async fn early_replacement_is_used_once_valid() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let (live, before) = follow(&settings, Role::Host);
    let begins = SystemTime::now() + Duration::from_secs(2);
    let validity = Validity { not_before: begins, not_after: begins + 2 * HOUR };
    let issued = pki.authority.issue(Role::Host, "a", validity).unwrap();
    issued.save(pki.path(), "host-a").unwrap();
    until_problem(&live, "valid only").await;
    until_replaced(&live, before).await;
    assert_eq!(live.problem(), None);
}

#[tokio::test]
async fn replacement_with_other_identity_is_refused() {
    let other = |pki: &Pki, _: &Path| {
        pki.issue(Role::Host, "b").save(pki.path(), "host-a").unwrap();
    };
    refused(other, "restart").await;
}

#[tokio::test]
async fn a_changed_ca_decides_about_new_connections() {
    let (ours, theirs) = (Pki::new(), Pki::new());
    let settings = ours.settings(Role::Dpu, "dpu-1");
    let (live, _) = follow(&settings, Role::Dpu);
    let server = Server::new(live, BOUND);
    let (listener, address) = listen().await;
    let stranger = theirs.issue(Role::Host, "a");
    let admitted = async || {
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            server.accept(stream).await.is_ok()
        };
        let (admitted, _stream) = tokio::join!(accept, raw_client(&address, Some(&stranger)));
        admitted
    };
    assert!(!bounded(admitted()).await);

    let both = [theirs.authority.certificate(), ours.authority.certificate()].concat();
    fs::write(&settings.ca, both).unwrap();
    bounded(async { while !admitted().await {} }).await;
}

#[tokio::test]
async fn certificate_expiry_is_announced() {
    const DAY: Duration = Duration::from_secs(86_400);
    let pki = Pki::new();
    let shown = |since: Duration, left: Duration, ahead: Duration| {
        let now = SystemTime::now();
        let validity = Validity { not_before: now - since, not_after: now + left };
        let issued = pki.authority.issue(Role::Host, "a", validity).unwrap();
        let settings = pki.save(&issued, "short");
        LiveCredentials::load(&settings, &[Role::Host]).unwrap().expiring(ahead)
    };
    assert_eq!(shown(80 * DAY, 10 * DAY, 5 * DAY), None);
    let warning = shown(80 * DAY, 10 * DAY, 14 * DAY).unwrap();
    assert!(
        warning.contains("short.crt expires on ") && warning.ends_with("renew it"),
        "{warning}"
    );
    // A certificate of one hour is renewed automatically and in time.
    assert_eq!(shown(Duration::from_secs(60), HOUR, 14 * DAY), None);
    assert!(shown(2 * HOUR, HOUR / 2, 14 * DAY).is_some());
}
