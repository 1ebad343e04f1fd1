//! Valid and invalid files, and the messages for invalid ones.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use crate::support::{
    HOUR, Pki, TRUST_DOMAIN, assert_refused, expired, load, load_error, not_yet_valid,
};
use mtls::{
    Credentials, Role,
    authority::{Authority, AuthorityError, Validity},
};
use rcgen::ExtendedKeyUsagePurpose;

#[test]
fn valid_files_of_every_role_pass() {
    let pki = Pki::new();
    for role in Role::ALL {
        let credentials = load(&pki.settings(role, "one")).unwrap();
        assert_eq!(credentials.identity().to_string(), format!("spiffe://test.local/{role}/one"));
    }
}

#[test]
fn first_expiring_ca_counts() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    let alone = load(&settings).unwrap().ca_validity();
    let longer = Authority::create("test.local", Validity::from_now(2 * HOUR)).unwrap();
    let ours = pki.authority.certificate();
    for bundle in [[ours, longer.certificate()], [longer.certificate(), ours]] {
        fs::write(&settings.ca, bundle.concat()).unwrap();
        assert_eq!(load(&settings).unwrap().ca_validity(), alone);
    }
}

#[test]
fn unusable_role_is_refused() {
    let pki = Pki::new();
    let error = Credentials::load(&pki.settings(Role::Host, "a"), &[Role::Operator, Role::Viewer]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("operator or viewer"), "{error}");
}

#[test]
fn missing_and_malformed_files_are_named() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    for path in [&settings.ca, &settings.certificate, &settings.key] {
        let content = fs::read(path).unwrap();
        for bad in ["", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            fs::write(path, bad).unwrap();
            assert!(load_error(&settings).contains(path.to_str().unwrap()), "{path:?} {bad:?}");
        }
        fs::remove_file(path).unwrap();
        let error = load_error(&settings);
        assert!(
            error.contains(path.to_str().unwrap()) && error.contains("No such file"),
            "{error}"
        );
        fs::write(path, content).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        load(&settings).unwrap();
    }
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    assert_eq!(fs::metadata(&settings.key).unwrap().permissions().mode() & 0o777, 0o600);
    for mode in [0o604, 0o644, 0o620, 0o660] {
        fs::set_permissions(&settings.key, Permissions::from_mode(mode)).unwrap();
        let error = load_error(&settings);
        assert!(error.contains(&format!("has mode {mode:04o}")), "{error}");
        assert!(error.contains("chmod 600"), "{error}");
    }
    fs::set_permissions(&settings.key, Permissions::from_mode(0o400)).unwrap();
    load(&settings).unwrap();
}

#[test]
fn certificate_that_others_may_write_is_refused() {
    let pki = Pki::new();
    let settings = pki.settings(Role::Host, "a");
    for path in [&settings.ca, &settings.certificate] {
        for mode in [0o666, 0o646] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            let error = load_error(&settings);
            let named = format!("{} has mode {mode:04o}", path.display());
            assert!(error.contains(&named) && error.contains("chmod o-w"), "{error}");
        }
        fs::set_permissions(path, Permissions::from_mode(0o664)).unwrap();
        load(&settings).unwrap();
    }
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let pki = Pki::new();
    let mut settings = pki.settings(Role::Host, "a");
    settings.key = pki.settings(Role::Host, "b").key;
    assert_refused(&settings, "host-b.key does not");
}

#[test]
fn dates_are_reported() {
    let pki = Pki::new();
    let issued = pki.authority.issue(Role::Host, "old", expired()).unwrap();
    let error = load_error(&pki.save(&issued, "old"));
    assert!(error.contains("old.crt (CN=host old) expired on 20"), "{error}");
    assert!(error.ends_with("Z: renew it"), "{error}");

    let issued = pki.authority.issue(Role::Host, "new", not_yet_valid()).unwrap();
    let error = load_error(&pki.save(&issued, "new"));
    assert!(error.contains("new.crt (CN=host new) "), "{error}");
    assert!(error.contains("clock"), "{error}");
}

#[test]
fn a_certificate_of_another_ca_is_refused() {
    let (ours, theirs) = (Pki::new(), Pki::new());
    for role in Role::ALL {
        let mut settings = theirs.settings(role, "a");
        settings.ca = ours.path().join("ca.crt");
        assert_refused(&settings, "under CA file");
    }
}

#[test]
fn one_of_several_cas_will_do() {
    let (ours, theirs) = (Pki::new(), Pki::new());
    let settings = ours.settings(Role::Host, "a");
    let both = [theirs.authority.certificate(), ours.authority.certificate()].concat();
    fs::write(&settings.ca, both).unwrap();
    load(&settings).unwrap();
}

#[test]
fn certificate_for_another_use_is_refused() {
    let pki = Pki::new();
    let odd = pki.odd(&["spiffe://test.local/host/a"], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert_refused(&pki.save(&odd, "odd"), "extended key usage");
}

#[test]
fn exactly_one_identity_is_needed() {
    let pki = Pki::new();
    assert_refused(&pki.save(&pki.odd(&[], |_| {}), "none"), "no SPIFFE identity");

    let two = ["spiffe://test.local/host/a", "spiffe://test.local/host/b"];
    assert_refused(&pki.save(&pki.odd(&two, |_| {}), "two"), "names 2 URIs");

    let other = ["https://test.local/host/a"];
    assert_refused(&pki.save(&pki.odd(&other, |_| {}), "other"), "form spiffe://");
}

#[test]
fn another_trust_domain_is_refused() {
    let pki = Pki::new();
    let mut settings = pki.settings(Role::Host, "a");
    settings.trust_domain = "elsewhere".into();
    assert_refused(&settings, "trust domain \"elsewhere\"");
}

#[test]
fn secrets_stay_out_of_debug_output() {
    let pki = Pki::new();
    let issued = pki.issue(Role::Host, "a");
    let credentials = load(&pki.save(&issued, "a")).unwrap();
    assert!(!format!("{issued:?}").contains("PRIVATE"));
    assert!(format!("{credentials:?}").starts_with("Credentials(Credentials { identity"));
}

#[test]
fn a_ca_is_opened_again_and_never_overwritten() {
    let pki = Pki::new();
    let error = pki.authority.save(pki.path()).unwrap_err();
    assert!(matches!(error, AuthorityError::Exists(_)), "{error}");

    let opened = Authority::open(pki.path()).unwrap();
    assert_eq!(opened.trust_domain(), TRUST_DOMAIN);
    let issued = opened.issue(Role::Viewer, "eve", Validity::from_now(HOUR)).unwrap();
    load(&pki.save(&issued, "eve")).unwrap();
}

#[test]
fn malformed_names_get_no_certificate() {
    let pki = Pki::new();
    for name in ["", "a/b", "a b", "..", "ä"] {
        assert!(pki.authority.issue(Role::Host, name, Validity::from_now(HOUR)).is_err(), "{name}");
    }
    assert!(Authority::create("Not A Domain", Validity::from_now(HOUR)).is_err());
}
