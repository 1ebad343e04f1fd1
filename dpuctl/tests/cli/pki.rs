//! `dpuctl pki` creates files that the programs accept.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use mtls::{Credentials, Role, TlsSettings};

use crate::service::{Dut, run};

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
async fn service_and_operator_connect_with_its_certificates() {
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "pki init --dir . --trust-domain test.local",
        "pki issue dpu dpu-1 --dir .",
        "pki issue operator alice --dir .",
        "pki init --dir other --trust-domain test.local",
        "pki issue operator eve --dir other --out .",
    ] {
        assert_eq!(run(line, folder.path(), "").await.code, 0, "{line}");
    }
    let file = |name: &str| folder.path().join(name);
    let settings = TlsSettings {
        ca: file("ca.crt"),
        certificate: file("dpu-dpu-1.crt"),
        key: file("dpu-dpu-1.key"),
        trust_domain: "test.local".into(),
    };
    let dut = Dut::serve(settings, folder).await;
    dut.configure("operator-alice");
    let answered = dut.dpuctl("get attachments").await;
    assert_eq!(answered.code, 0, "{answered:?}");
    assert_eq!(dut.asked().len(), 1);
    dut.configure("operator-eve");
    assert_ne!(dut.dpuctl("get attachments").await.code, 0, "its CA is another");
    assert!(dut.asked().is_empty());
}

#[tokio::test]
async fn a_ca_is_overwritten_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let key = || fs::read(folder.path().join("a/ca.key")).unwrap();
    assert_eq!(run("pki init --dir a", folder.path(), "").await.code, 0);
    let before = key();
    let again = run("pki init --dir a", folder.path(), "").await;
    assert_eq!(again.code, 2);
    assert!(again.notes.starts_with("error: a/ca.key exists already "), "{again:?}");
    assert!(again.notes.ends_with(" --force\n"), "{again:?}");
    assert_eq!(key(), before);
    assert_eq!(run("pki init --dir a --force", folder.path(), "").await.code, 0);
    assert_ne!(key(), before);
    assert_eq!(run("pki issue host node-1 --dir a", folder.path(), "").await.code, 0);
}

#[tokio::test]
async fn pki_writes_to_out_and_replaces_only_forced() {
    let folder = tempfile::tempdir().unwrap();
    run("pki init", folder.path(), "").await;
    let issue = "pki issue host node-1 --out new/out";
    let files = "new/out/host-node-1.crt\nnew/out/host-node-1.key\n";
    assert_eq!(run(issue, folder.path(), "").await.output, files);
    let certificate = || fs::read(folder.path().join("new/out/host-node-1.crt")).unwrap();
    let first = certificate();
    let again = run(issue, folder.path(), "").await;
    assert_eq!(again.code, 2);
    let path = "new/out/host-node-1.crt";
    assert!(again.notes.starts_with(&format!("error: {path} exists already ")), "{again:?}");
    assert!(again.notes.ends_with(" --force\n"), "{again:?}");
    assert_eq!(certificate(), first);
    let renewed = run(&format!("{issue} --force"), folder.path(), "").await;
    assert_eq!((renewed.code, renewed.output.as_str()), (0, files));
    assert_ne!(certificate(), first);
}

#[tokio::test]
async fn ca_with_mismatched_key_issues_nothing() {
    let folder = tempfile::tempdir().unwrap();
    run("pki init --dir a", folder.path(), "").await;
    run("pki init --dir b", folder.path(), "").await;
    fs::copy(folder.path().join("b/ca.key"), folder.path().join("a/ca.key")).unwrap();
    let refused = run("pki issue host node-1 --dir a", folder.path(), "").await;
    let shown = "error: a/ca.key and a/ca.crt ";
    assert!(refused.code == 2 && refused.notes.starts_with(shown), "{refused:?}");
    assert!(refused.notes.contains("`dpuctl pki init --force --dir a`"), "{refused:?}");
    assert!(!folder.path().join("a/host-node-1.key").exists());
}

#[tokio::test]
async fn missing_ca_names_pki_init() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = run("pki issue host node-1", folder.path(), "").await;
    assert_eq!(outcome.code, 2);
    assert!(outcome.notes.contains("no CA in pki: "), "{outcome:?}");
    assert!(outcome.notes.ends_with(" `dpuctl pki init --dir pki`\n"), "{outcome:?}");
}
