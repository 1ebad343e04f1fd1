//! Disks that are full or broken.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use e2e::{Lab, Netns, Settings, scenarios::pods::addresses, wait_for};
use nix::mount::{MsFlags, mount, umount};

const LIMIT: Duration = Duration::from_secs(30);

/// A small file system on a program's state folder.
pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts an empty one on the folder. No process may have files open there.
    pub(crate) fn under(folder: PathBuf) -> Self {
        let options = Some("size=16m,mode=700");
        mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        Self { folder }
    }

    pub(crate) fn fill(&self) {
        let mut file = File::create(self.folder.join("filler")).unwrap();
        let block = [0; 4096];
        while file.write_all(&block).is_ok() {}
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(self.folder.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount(&self.folder);
    }
}

/// A lab whose service has its state on a small disk.
pub(crate) fn lab_with_small_disk_of_service() -> (Lab, SmallDisk) {
    let mut lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    lab.service.stop();
    let disk = SmallDisk::under(lab.path().join("service"));
    lab.start_service();
    lab.wait_until_good();
    (lab, disk)
}

/// A lab whose agent has its state on a small disk.
pub(crate) fn lab_with_small_disk_of_agent() -> (Lab, SmallDisk) {
    let mut lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    lab.agent.stop();
    let disk = SmallDisk::under(lab.path().join("agent"));
    lab.start_agent();
    lab.wait_until_good();
    (lab, disk)
}

/// Attaches and detaches until an attach is refused: a full file system still accepts some writes.
pub(crate) fn attach_until_refused(lab: &Lab, code: u64) {
    for _ in 0..100 {
        let pod = Netns::new("other");
        let answer = lab.add("blue", &pod, "eth0");
        if !answer.status.success() {
            answer.fails(code, &[]);
            return;
        }
        lab.del("blue", &pod, "eth0").nothing();
    }
    panic!("never refused");
}

#[test]
fn full_service_disk_only_refuses_attaches() {
    let (mut lab, disk) = lab_with_small_disk_of_service();
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let _ = lab.add("blue", &a, "eth0").result();
    let of_b = addresses(&lab.add("blue", &b, "eth0").result());

    disk.fill();
    attach_until_refused(&lab, 114);
    // A disk that refuses one write may accept another. The condition stays false.
    for _ in 0..20 {
        let full = lab.operator().fault("JOURNAL_NOT_WRITABLE");
        assert!(full.is_some_and(|full| full["affectsPods"] == true));
    }
    assert!(of_b.iter().all(|address| a.pings(address)));
    lab.del("blue", &a, "eth0").nothing();
    disk.empty();
    lab.del("blue", &b, "eth0").nothing();
    lab.assert_clean_slate();
    let _ = lab.add("blue", &a, "eth0").result();
    lab.assert_invariants();
    wait_for("all conditions to be true", LIMIT, || {
        lab.operator().faults().is_empty().then_some(())
    });
    lab.service.stop();
}

#[test]
fn full_agent_disk_only_refuses_attaches() {
    let (mut lab, disk) = lab_with_small_disk_of_agent();
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let _ = lab.add("blue", &pod, "eth0").result();
    let of_other = addresses(&lab.add("blue", &other, "eth0").result());
    disk.fill();
    attach_until_refused(&lab, 131);
    assert!(of_other.iter().all(|address| pod.pings(address)));
    disk.empty();
    lab.assert_invariants();
    for pod in [&pod, &other] {
        lab.del("blue", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
    lab.agent.stop();
}

#[test]
fn service_without_journal_refuses_calls() {
    let mut lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    let (a, b, c) = (Netns::new("a"), Netns::new("b"), Netns::new("c"));
    let _ = lab.add("blue", &a, "eth0").result();
    let of_b = addresses(&lab.add("blue", &b, "eth0").result());
    lab.service.stop();
    let journal = only_file(&lab.path().join("service"));
    let good = fs::read(&journal).unwrap();
    for bad in [vec![b'x'; 8192], good[..good.len() / 2].to_vec()] {
        fs::write(&journal, &bad).unwrap();
        lab.start_service();
        let name = journal.to_str().unwrap();
        wait_for("the refusal", LIMIT, || {
            let (code, text) = lab.add("blue", &c, "eth0").error();
            (code == 114 && text.contains(name)).then_some(())
        });
        wait_for("a STATUS that says so", LIMIT, || {
            let answer = lab.status();
            (!answer.status.success() && answer.error().1.contains(name)).then_some(())
        });
        // The agent may still report the earlier refusal while the service starts.
        wait_for("a dpuctl that says so", LIMIT, || {
            let status = lab.operator().dpuctl(&["status"]);
            String::from_utf8_lossy(&status.stderr).contains(name).then_some(())
        });
        assert!(of_b.iter().all(|address| a.pings(address)));
        lab.service.stop();
        assert_eq!(fs::read(&journal).unwrap(), bad);
    }

    // A DEL in between is delivered when the file is back, without a restart.
    lab.start_service();
    lab.del("blue", &a, "eth0").nothing();
    let restored = journal.with_extension("restored");
    fs::write(&restored, good).unwrap();
    fs::rename(restored, &journal).unwrap();
    lab.wait_until_good();
    let _ = lab.add("blue", &c, "eth0").result();
    assert!(of_b.iter().all(|address| c.pings(address)));
    lab.assert_invariants();
}

fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut journals = files.iter().filter(|path| path.extension() == Some("redb".as_ref()));
    journals.next().unwrap_or_else(|| panic!("no journal among {files:?}")).clone()
}
