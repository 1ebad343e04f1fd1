use std::fs;

use netlink::VfSettings;
use serde_json::Value;
use tempfile::TempDir;

use super::*;

#[test]
fn failed_write_names_the_file_and_remedy() {
    let source = Arc::new(io::Error::from_raw_os_error(28));
    let path = Path::new("/state/records.redb").into();
    let told = not_written(&WriteError::Failed { path, source }).message;
    assert!(told.contains(" in /state/records.redb: No space left"), "{told}");
    assert!(told.ends_with(": make room on its disk"), "{told}");
}

pub(crate) fn record(id: &str, container_id: &str) -> Record {
    Record {
        attachment: v1::Attachment {
            id: id.into(),
            key: Some(v1::AttachmentKey {
                container_id: container_id.into(),
                interface_name: "eth0".into(),
            }),
            vf: Some(v1::Vf { device: format!("pci-{id}"), ..Default::default() }),
            ..Default::default()
        },
        configuration: "blue".into(),
        netns: PodNetns { path: "/run/netns/a".into(), id: NetnsId { dev: 4, inode: 7 } },
        original: Baseline {
            name: "p0v0".into(),
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            mtu: 1500,
            alternative_names: vec!["enp3s0v0".into()],
            ..Baseline::default()
        },
        boot_id: "boot".into(),
        phase: Phase::Live,
        device_info_file: None,
        is_guess: false,
        stacked: Vec::new(),
        release_cause: String::new(),
        offer: None,
        is_returned: false,
        device: OnceLock::new(),
    }
}

/// Has a record as if it had been written: other modules can't write one.
pub(crate) fn keep(records: &Records, record: Record) {
    records.keep(&Arc::new(record));
}

fn open(folder: &TempDir) -> Result<Records, RecordsError> {
    Records::open(folder.path(), "this boot")
}

/// A row that reads or writes differently needs another schema version, and a migration. Fields that are left out
/// while they are empty have values here.
#[test]
fn rows_of_schema_one_are_frozen() {
    let port = VfSettings { mac: record("a", "c").original.mac, ..VfSettings::default() };
    let whole = Record {
        device_info_file: Some("/var/run/info.json".into()),
        stacked: vec!["macvlan x".into()],
        release_cause: "its network namespace ended without a DEL".into(),
        original: Baseline { port: Some(port), ..record("a", "c").original },
        ..record("a", "c")
    };
    let golden: Value = serde_json::from_str(include_str!("schema-1.json")).unwrap();
    assert_eq!(serde_json::to_value(&whole).unwrap(), golden);
    let read = read(b"a", golden.to_string().as_bytes()).unwrap();
    assert_eq!(serde_json::to_value(&*read).unwrap(), golden);
}

/// Such as after a full disk.
#[tokio::test]
async fn outdated_speculative_record_is_removed_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let guess = |id, container_id| Record {
        is_guess: true,
        phase: Phase::Releasing,
        ..record(id, container_id)
    };
    let of_vf = |answered: Record, other: &str| {
        let vf = Some(v1::Vf { device: format!("pci-{other}"), ..Default::default() });
        Record { attachment: v1::Attachment { vf, ..answered.attachment }, ..answered }
    };
    {
        let records = open(&folder).unwrap();
        let (same_key, same_vf) = (record("b", "c1"), of_vf(record("d", "c4"), "c"));
        for one in [guess("a", "c1"), same_key, guess("c", "c3"), same_vf, guess("e", "c5")] {
            records.write(&one).done().await.unwrap();
        }
    }
    for _ in 0..2 {
        let records = open(&folder).unwrap();
        let mut left: Vec<_> = records.all().iter().map(|record| record.id().to_owned()).collect();
        left.sort();
        assert_eq!(left, ["b", "d", "e"]);
        assert_eq!(records.by_key(&record("b", "c1").key()).unwrap().id(), "b");
    }
}

#[tokio::test]
async fn records_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    {
        let records = open(&folder).unwrap();
        let releasing = Record { phase: Phase::Releasing, ..record("b", "c2") };
        for record in [record("a", "c1"), record("b", "c2"), releasing, record("c", "c3")] {
            records.write(&record).done().await.unwrap();
        }
        records.remove("c");
    }
    let records = open(&folder).unwrap();
    assert_eq!(records.all().len(), 2);
    let a = records.by_id("a").unwrap();
    assert_eq!(a.original, record("a", "c1").original);
    assert_eq!(a.phase, Phase::Live);
    assert_eq!(records.by_key(&record("b", "c2").key()).unwrap().phase, Phase::Releasing);
    assert_eq!(records.by_device(&"pci-b".into()).unwrap().id(), "b");
    assert!(records.by_id("c").is_none());
    assert!(records.by_key(&record("c", "c3").key()).is_none());
    assert!(records.by_device(&"pci-c".into()).is_none());
}

#[tokio::test]
async fn damaged_record_is_named_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    {
        let journal =
            Journal::open(&folder.path().join("records.redb"), SCHEMA, Outlives::Process).unwrap();
        journal.commit(vec![Change::put(TABLE, "x", "{")]).await.unwrap();
    }
    let error = open(&folder).unwrap_err();
    assert!(error.to_string().starts_with("record x "), "{error}");
}

/// Records with one entry, written in that boot, of which half a disk's page is left.
async fn torn_in(boot_id: &str) -> (TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let records = Records::open(folder.path(), boot_id).unwrap();
    records.write(&record("a", "c1")).done().await.unwrap();
    drop(records);
    let path = folder.path().join("records.redb");
    let whole = fs::read(&path).unwrap();
    let torn = whole[..2048].to_vec();
    fs::write(&path, &torn).unwrap();
    (folder, torn)
}

#[tokio::test]
async fn torn_records_of_earlier_boot_are_moved_aside() {
    let (folder, torn) = torn_in("an earlier boot").await;
    let records = open(&folder).unwrap();
    assert!(records.all().is_empty());
    let aside = folder.path().join("records.torn-in-an earlier boot");
    assert_eq!(fs::read(aside).unwrap(), torn);
    records.write(&record("b", "c2")).done().await.unwrap();
    drop(records);
    assert_eq!(open(&folder).unwrap().all().len(), 1);
}

#[tokio::test]
async fn damaged_records_of_this_boot_are_refused() {
    let (folder, torn) = torn_in("this boot").await;
    let error = open(&folder).unwrap_err();
    assert!(error.is_damage(), "{error}");
    assert_eq!(fs::read(folder.path().join("records.redb")).unwrap(), torn);
}

#[tokio::test]
async fn damaged_records_of_unknown_boot_are_refused() {
    let (folder, torn) = torn_in("an earlier boot").await;
    fs::remove_file(folder.path().join("records.boot")).unwrap();
    let error = open(&folder).unwrap_err();
    assert!(error.is_damage(), "{error}");
    assert_eq!(fs::read(folder.path().join("records.redb")).unwrap(), torn);
}

/// What may be found in the place of a boot id.
const NO_BOOT_IDS: [&[u8]; 5] = [b"", b"\xff\xfe", b"../../../tmp/x", b"a\nb", &[b'a'; 1 << 16]];

#[tokio::test]
async fn intact_records_are_kept_for_any_boot() {
    for note in NO_BOOT_IDS {
        let folder = tempfile::tempdir().unwrap();
        let records = open(&folder).unwrap();
        records.write(&record("a", "c1")).done().await.unwrap();
        drop(records);
        let path = folder.path().join("records.boot");
        fs::write(&path, note).unwrap();
        assert_eq!(open(&folder).unwrap().all().len(), 1);
        assert_eq!(fs::read_to_string(path).unwrap(), "this boot");
    }
}

#[tokio::test]
async fn damaged_records_without_boot_id_are_kept() {
    for note in NO_BOOT_IDS {
        let (folder, torn) = torn_in("an earlier boot").await;
        fs::write(folder.path().join("records.boot"), note).unwrap();
        let error = open(&folder).unwrap_err();
        assert!(error.is_damage(), "{error}");
        assert_eq!(fs::read(folder.path().join("records.redb")).unwrap(), torn);
    }
}

#[tokio::test]
async fn sound_records_of_an_earlier_boot_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let records = Records::open(folder.path(), "an earlier boot").unwrap();
    records.write(&record("a", "c1")).done().await.unwrap();
    drop(records);
    assert_eq!(open(&folder).unwrap().all().len(), 1);
    assert_eq!(fs::read_to_string(folder.path().join("records.boot")).unwrap(), "this boot");
}
