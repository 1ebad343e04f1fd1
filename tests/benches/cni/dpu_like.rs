//! A lab whose DPU is slow where real ones are: its disk's syncs take long, its link has a latency, and its service
//! has but a share of one core. The programs are those of other labs; what slows them stands around them.

use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e::{CardSettings, Lab, Settings, program};

use crate::table::{Report, Row};

/// What the journal's sync takes besides the disk's own time.
const SYNC: Duration = Duration::from_millis(10);
/// What the link takes each way, which are 1 ms for a round trip.
const ONE_WAY: Duration = Duration::from_micros(500);
/// Of each such time ...
const PERIOD: Duration = Duration::from_millis(10);
/// ... the service has so much of the machine's processors.
const QUOTA: Duration = Duration::from_micros(2500);

/// Where control groups are.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// Names the service's control group, which whoever sets it removes, should this process be killed.
const NAME: &str = "OFFLOAD_BENCH_CGROUP";

/// Ends the name of that of a DPU whose ports are in another kernel.
const APART: &str = "-apart";

/// Such a lab.
pub(crate) struct DpuLike {
    lab: Lab,
    /// Ends after its service.
    share: Share,
}

impl DpuLike {
    /// Brings it up, or says why it can't be had.
    pub(crate) fn start(settings: &Settings) -> Result<Self, String> {
        Self::start_in(settings, "")
    }

    fn start_in(settings: &Settings, group: &str) -> Result<Self, String> {
        probe_tracer()?;
        let share = Share::make(group).map_err(|error| {
            format!(
                "the service can't be confined to a share of a core by a control group ({error})"
            )
        })?;
        let settings = Settings { proxied: true, ..settings.clone() };
        let lab = Lab::start_with(&settings, |folder| install(folder, &share));
        lab.proxy().delay(ONE_WAY);
        let service = lab.service.id();
        assert!(is_traced(service), "the service's syncs are not held up");
        assert!(share.has(service), "the service is not in its control group");
        Ok(Self { lab, share })
    }

    /// Likewise, of a DPU whose ports are in another kernel: here all are set up before, and the service programs none.
    pub(crate) fn start_apart(settings: &Settings) -> Result<Self, String> {
        let card = CardSettings { has_eswitch: false, ..settings.card };
        // There is no PF that could keep a pod to anything either.
        let free = "[[network]]\nanti_spoofing = \"off\"";
        let networks = settings.networks.replace("[[network]]", free);
        let this = Self::start_in(&Settings { card, networks, ..settings.clone() }, APART)?;
        let card = &this.lab.card;
        for representor in card.representors() {
            card.dpu.ip(&["link", "set", representor["ifname"].as_str().unwrap(), "up"]);
        }
        Ok(this)
    }

    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Prints what it was made of, and how often the service met the end of its share.
    pub(crate) fn print(&self, report: &mut Report) {
        let mut table = report.table("The DPU-like set-up", &["what", "figure"]);
        let ms = |duration: Duration| format!("{} ms", duration.as_secs_f64() * 1000.0);
        let share = QUOTA.as_secs_f64() / PERIOD.as_secs_f64() * 100.0;
        table.row(Row::of("the journal's sync takes longer by").and(ms(SYNC)));
        table.row(Row::of("the link's round trip takes longer by").and(ms(2 * ONE_WAY)));
        table.row(Row::of("the service's share of one core").and(format!("{share:.0} %")));
        let throttled = self.share.throttled() * 100.0;
        table.row(
            Row::of("its busy periods in which it met the end of its share")
                .and(format!("{throttled:.0} %")),
        );
    }
}

/// Syncs are held up by strace, which stops the service at them and at nothing else.
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

/// Puts a service into the lab's folder that is slowed. It is the process that the lab starts, as `-D` has the tracer
/// be another, and only itself, without the tracer, is in the control group.
fn install(folder: &Path, share: &Share) {
    let bin = folder.join("bin");
    let path = bin.join("dpu-service");
    let script = format!(
        r#"#!/bin/sh
exec strace -D -f --seccomp-bpf -qqq -o /dev/null -e trace=fsync,fdatasync \
    -e inject=fsync,fdatasync:delay_enter={delay} \
    sh -c 'echo $$ >"$0" && exec "$@"' '{group}' '{service}' "$@"
"#,
        delay = SYNC.as_micros(),
        group = share.folder.join("cgroup.procs").display(),
        service = program("dpu-service").display(),
    );
    fs::create_dir(&bin).unwrap();
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn is_traced(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status
        .lines()
        .any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// A control group whose processes have a share of one core.
struct Share {
    folder: PathBuf,
}

impl Share {
    /// The name is followed by that of what it is for.
    fn make(of: &str) -> io::Result<Self> {
        let name =
            env::var(NAME).unwrap_or_else(|_| format!("offload-bench-{}", rand::random::<u32>()));
        let name = name + of;
        let root = Path::new(CONTROL_GROUPS);
        let (quota, period) = (QUOTA.as_micros(), PERIOD.as_micros());
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

    fn has(&self, process: u32) -> bool {
        let processes = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap();
        processes.lines().any(|line| line == process.to_string())
    }

    /// The part of the periods with work in which the quota was used up before the work was done.
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
