//! The archive for a bug report.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use crate::service::Dut;

/// The text of each file of an archive, unpacked by `tar`.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar").args(arguments).arg(archive).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let names = tar(&["-tzf"]);
    let text = |name: &str| {
        let output = Command::new("tar").arg("-xzOf").arg(archive).arg(name).output().unwrap();
        (name.to_owned(), String::from_utf8(output.stdout).unwrap())
    };
    names.lines().map(text).collect()
}

#[tokio::test]
async fn bundle_holds_the_state_without_secrets() {
    let dut = Dut::start().await;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("report.tar.gz");
    let line = format!("bundle -o {}", archive.display());
    let made = dut.dpuctl(&line).await;
    assert_eq!(made.code, 0, "{}", made.notes);
    let all = format!("within_s: {}", u64::MAX);
    assert_eq!(dut.asked().iter().filter(|asked| asked.contains(&all)).count(), 2);
    let files = unpacked(&archive);
    let names =
        ["versions.txt", "status.json", "doctor.json", "networks.json", "configuration.toml"];
    assert!(names.iter().all(|name| files.contains_key(*name)), "{:?}", files.keys());
    assert!(
        files["events.json"].contains("\"events\"") && files["audit.json"].contains("\"entries\"")
    );
    assert!(files["doctor.json"].contains("VF_DIFFERS") && files["metrics.txt"] == "# EOF\n");
    assert!(files.values().all(|text| !text.contains("s3cret")), "{files:?}");
    let mode = fs::metadata(&archive).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(dut.dpuctl(&line).await.code, 1, "an existing file stays");
}
