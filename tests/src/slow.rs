//! A service that is as slow as on real DPUs: slow disk syncs and a share of one core. The program is unchanged; strace
//! and a control group slow it.

use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use crate::{Program, program};

/// Mount point of control groups.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// Environment variable with the service's control group. Its owner removes the group if this process is killed.
const NAME: &str = "OFFLOAD_SLOW_CGROUP";

/// Slows the service of a lab or fleet with this in its [`Settings`](crate::Settings), also after restarts. Drop it
/// after the service has ended.
#[derive(Debug)]
pub struct SlowService {
    share: Share,
}

impl SlowService {
    /// Added time of each sync of the journal.
    pub const SYNC: Duration = Duration::from_millis(10);
    /// Period of the processor quota.
    pub const PERIOD: Duration = Duration::from_millis(10);
    /// Processor time of the service in each period.
    pub const QUOTA: Duration = Duration::from_micros(2500);

    /// Creates a control group whose name ends with `of`.
    ///
    /// # Errors
    /// Why it is not available here.
    pub fn make(of: &str) -> Result<Arc<Self>, String> {
        probe_tracer()?;
        let share = Share::make(of).map_err(|error| {
            format!(
                "the service can't be confined to a share of a core by a control group ({error})"
            )
        })?;
        Ok(Arc::new(Self { share }))
    }

    /// Installs a slowed service in a folder. `strace -D` makes the tracer a grandchild, so the service is the started
    /// process and alone in the control group.
    pub(crate) fn install(&self, folder: &Path) {
        let bin = folder.join("bin");
        let path = bin.join("dpu-service");
        let script = format!(
            r#"#!/bin/sh
exec strace -D -f --seccomp-bpf -qqq -o /dev/null -e trace=fsync,fdatasync \
    -e inject=fsync,fdatasync:delay_enter={delay} \
    sh -c 'echo $$ >"$0" && exec "$@"' '{group}' '{service}' "$@"
"#,
            delay = Self::SYNC.as_micros(),
            group = self.share.processes().display(),
            service = program("dpu-service").display(),
        );
        fs::create_dir(&bin).unwrap();
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Asserts that the service is slowed.
    ///
    /// # Panics
    /// If it is not.
    pub fn assert_slows(&self, service: &Program) {
        let process = service.id();
        assert!(is_traced(process), "the service's syncs are not held up");
        assert!(self.share.has(process), "the service is not in its control group");
    }

    /// Share of the periods with work in which the quota was used up.
    ///
    /// # Panics
    /// If the kernel does not report it.
    #[must_use]
    pub fn throttled(&self) -> f64 {
        self.share.throttled()
    }
}

/// strace delays syncs: it stops the service at these calls only.
fn probe_tracer() -> Result<(), String> {
    let output =
        Command::new("strace").args(["-f", "--seccomp-bpf", "-o", "/dev/null", "true"]).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "strace can't hold up the journal's syncs: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => {
            Err(format!("strace, which holds up the journal's syncs, can't be had: {error}"))
        }
    }
}

fn is_traced(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status
        .lines()
        .any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// A control group with a quota of one core.
#[derive(Debug)]
struct Share {
    folder: PathBuf,
}

impl Share {
    fn make(of: &str) -> io::Result<Self> {
        let name =
            env::var(NAME).unwrap_or_else(|_| format!("offload-slow-{}", std::process::id()));
        let name = name + of;
        let root = Path::new(CONTROL_GROUPS);
        let (quota, period) = (SlowService::QUOTA.as_micros(), SlowService::PERIOD.as_micros());
        let (parent, limits) = if root.join("cgroup.controllers").exists() {
            fs::write(root.join("cgroup.subtree_control"), "+cpu")?;
            (root.to_owned(), vec![("cpu.max", format!("{quota} {period}"))])
        } else {
            let limits = [("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)];
            (root.join("cpu"), limits.map(|(file, value)| (file, value.to_string())).into())
        };
        let share = Self { folder: parent.join(name) };
        fs::create_dir(&share.folder)?;
        for (file, value) in limits {
            fs::write(share.folder.join(file), value)?;
        }
        Ok(share)
    }

    fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    fn has(&self, process: u32) -> bool {
        let processes = fs::read_to_string(self.processes()).unwrap();
        processes.lines().any(|line| line == process.to_string())
    }

    fn throttled(&self) -> f64 {
        let statistics = fs::read_to_string(self.folder.join("cpu.stat")).unwrap();
        let value = |key: &str| -> f64 {
            let mut lines = statistics.lines().filter_map(|line| line.strip_prefix(key));
            lines.next().unwrap().trim().parse().unwrap()
        };
        value("nr_throttled ") / value("nr_periods ").max(1.0)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
