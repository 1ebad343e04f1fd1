//! `dpuctl pki` makes what the programs take.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use mtls::{Credentials, Role, TlsSettings};

use crate::service::run;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn every_role_gets_a_certificate_that_loads() {
    let folder = tempfile::tempdir().unwrap();
    let init = run("pki init --trust-domain lab.example", folder.path(), "").await;
    assert_eq!((init.code, init.output.as_str()), (0, "pki/ca.crt\npki/ca.key\n"), "{init:?}");
    for role in Role::ALL {
        let issued = run(&format!("pki issue {role} one --days 1"), folder.path(), "").await;
        let expected = format!("pki/{role}-one.crt\npki/{role}-one.key\n");
        assert_eq!((issued.code, issued.output), (0, expected));
        let file = |ending: &str| folder.path().join(format!("pki/{role}-one.{ending}"));
        let settings = TlsSettings {
            ca: folder.path().join("pki/ca.crt"),
            certificate: file("crt"),
            key: file("key"),
            trust_domain: "lab.example".into(),
        };
        let credentials = Credentials::load(&settings, &[role]).unwrap();
        assert_eq!(credentials.identity().name(), "one");
        assert_eq!(mode(&settings.key), 0o600);
    }
    assert_eq!(mode(&folder.path().join("pki/ca.key")), 0o600);
}

#[tokio::test]
async fn a_ca_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run("pki init --dir a", folder.path(), "").await.code, 0);
    let before = fs::read(folder.path().join("a/ca.key")).unwrap();
    let again = run("pki init --dir a", folder.path(), "").await;
    assert_eq!(again.code, 2);
    assert_eq!(again.notes, "error: a/ca.key exists already and is not overwritten\n");
    assert_eq!(fs::read(folder.path().join("a/ca.key")).unwrap(), before);
}

#[tokio::test]
async fn certificates_go_where_they_are_wanted_and_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    run("pki init", folder.path(), "").await;
    let issue = "pki issue host node-1 --out out";
    assert_eq!(
        run(issue, folder.path(), "").await.output,
        "out/host-node-1.crt\nout/host-node-1.key\n"
    );
    let first = fs::read(folder.path().join("out/host-node-1.crt")).unwrap();
    assert_eq!(run(issue, folder.path(), "").await.code, 0);
    assert_ne!(fs::read(folder.path().join("out/host-node-1.crt")).unwrap(), first);
}

#[tokio::test]
async fn without_a_ca_the_way_to_one_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = run("pki issue host node-1", folder.path(), "").await;
    assert_eq!(outcome.code, 2);
    assert_eq!(
        outcome.notes,
        "error: there is no CA in pki: make one with `dpuctl pki init --dir pki`\n"
    );
}
