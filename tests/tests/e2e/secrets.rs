//! Secrets: keys, and data that runtimes pass.

use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use e2e::{Call, Lab, Netns, Settings, scenarios::figure, wait_for};
use nix::sys::stat::{Mode, umask};
use serde_json::json;

/// Maximum log level.
const TRACE: &str = "[log]\nlevel = \"trace\"\n";

/// Secrets in a runtime's input, one in each possible place.
const PASSED: [&str; 5] = [
    "hidden-in-cni-args",
    "hidden-in-the-configuration",
    "hidden-in-args-cni",
    "hidden-in-an-annotation",
    "hidden-in-the-previous-result",
];

fn traced() -> Lab {
    let mut lab = Lab::start(&Settings { service: TRACE.into(), ..Settings::default() });
    lab.agent.stop();
    let mut file = File::options().append(true).open(lab.path().join("host-shim.toml")).unwrap();
    file.write_all(TRACE.as_bytes()).unwrap();
    lab.start_agent();
    lab.wait_until_good();
    lab
}

fn logs(lab: &Lab) -> String {
    let read = |name| fs::read_to_string(lab.path().join(name)).unwrap();
    read("dpu-service.log") + &read("host-shim-agent.log")
}

/// Lines of the PEM files of all current keys.
fn keys(lab: &Lab) -> Vec<String> {
    let files = fs::read_dir(lab.path().join("pki")).unwrap().map(|entry| entry.unwrap().path());
    let keys = files.filter(|path| path.extension().is_some_and(|end| end == "key"));
    let texts = keys.map(|path| fs::read_to_string(path).unwrap());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.len() > 20 && !line.starts_with("-----")).collect()
}

#[test]
fn logs_contain_no_secrets() {
    let lab = traced();
    let mut secrets = keys(&lab);
    assert!(secrets.len() > 3, "{secrets:?}");
    let pod = Netns::new("pod");
    let configuration = with_secrets(lab.configuration("blue"));
    for verb in ["ADD", "ADD", "DEL"] {
        let call = Call::new(verb, &configuration)
            .of(pod.name(), Some(&pod.path()), "eth0")
            .with("CNI_ARGS", format!("IgnoreUnknown=1;TOKEN={}", PASSED[0]));
        assert!(lab.execute(&call).status.success(), "{verb}");
    }
    let read = || logs(&lab).matches("certificates read").count();
    let before = read();
    lab.pki.issue("host", "node-1");
    lab.pki.issue("dpu", "dpu-1");
    wait_for("both take their new keys", Duration::from_secs(60), || {
        (read() >= before + 2).then_some(())
    });
    let _ = lab.add("blue", &pod, "eth0").result();

    secrets.extend(keys(&lab));
    secrets.extend(PASSED.map(str::to_owned));
    secrets.push("PRIVATE KEY".into());
    let logs = logs(&lab);
    assert!(logs.contains("TRACE"), "the logs are not those of trace level");
    for secret in &secrets {
        assert!(!logs.contains(secret.as_str()), "{secret} is in a log");
    }
    figure(secrets.len(), "secrets looked for in the logs of trace level");
}

/// A network configuration with a secret in every place that the plugin does not read.
fn with_secrets(mut configuration: serde_json::Value) -> serde_json::Value {
    configuration["password"] = PASSED[1].into();
    configuration["args"] = json!({"cni": {"token": PASSED[2]}});
    configuration["runtimeConfig"] =
        json!({"io.kubernetes.cri.pod-annotations": {"example.org/token": PASSED[3]}});
    configuration["prevResult"] = json!({"cniVersion": "1.1.0", "token": PASSED[4]});
    configuration
}

#[test]
fn socket_and_state_are_closed_to_others() {
    let lab = Lab::start(&Settings::default());
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    assert_eq!(mode(&lab.socket()), 0o600);
    for state in ["service", "agent"] {
        let folder = lab.path().join(state);
        assert_eq!(mode(&folder), 0o700);
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for journal in files.filter(|path| path.extension().is_some_and(|end| end == "redb")) {
            assert_eq!(mode(&journal), 0o600, "{}", journal.display());
        }
    }
}

/// Files and folders below a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let deeper = |path: PathBuf| {
        let more = if path.is_dir() { entries(&path) } else { Vec::new() };
        more.into_iter().chain([path])
    };
    found.flat_map(deeper).collect()
}

/// Runs `work` with another umask, which programs that it starts inherit.
fn with_umask(bits: u32, work: impl FnOnce()) {
    let earlier = umask(Mode::from_bits_truncate(bits));
    work();
    umask(earlier);
}

#[test]
fn state_is_private_under_any_umask() {
    let mut lab = Lab::start(&Settings::default());
    let states = ["service", "agent"].map(|state| lab.path().join(state));
    for bits in [0, 0o777] {
        lab.agent.stop();
        lab.service.stop();
        states.iter().for_each(|state| fs::remove_dir_all(state).unwrap());
        with_umask(bits, || {
            lab.start_service();
            lab.start_agent();
        });
        lab.wait_until_good();
        let pod = Netns::new("pod");
        let _ = lab.add("blue", &pod, "eth0").result();
        assert_eq!(mode(&lab.socket()), 0o600, "umask {bits:o}");
        let found: Vec<_> = states.iter().flat_map(|state| entries(state)).collect();
        assert!(found.len() > 4, "{found:?}");
        for path in found.iter().chain(&states) {
            let private = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(path), private, "umask {bits:o}: {}", path.display());
        }
        lab.del("blue", &pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}

/// The program ends, and its log names the folder and what to do.
fn assert_refused(log: &str, ended: ExitStatus, folder: &Path) {
    assert!(!ended.success(), "{log}");
    let reported = format!("folder {} has mode 0777", folder.display());
    assert!(log.contains(&reported) && log.contains("chmod go-w"), "{log}");
}

#[test]
fn folders_that_others_may_write_are_refused() {
    let mut lab = Lab::start(&Settings::default());
    let open = |folder: &Path| fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
    let close = |folder: &Path| fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    lab.agent.stop();
    lab.service.stop();
    let state = lab.path().join("service");
    open(&state);
    lab.start_service();
    let ended = lab.service_ends();
    assert_refused(&lab.service.log(), ended, &state);
    close(&state);
    // The folders of the records and of the socket.
    for folder in [lab.path().join("agent"), lab.path().to_owned()] {
        open(&folder);
        lab.start_agent();
        let ended = lab.agent_ends();
        assert_refused(&lab.agent.log(), ended, &folder);
        close(&folder);
    }
    // Not earlier: a service that starts while its folder's parent is open refuses that, too.
    lab.start_service();
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_clean_slate();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
