//! Wrong configuration files: `--check-config` and a start refuse them with place and advice.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use e2e::{Lab, Netns, Pki, Settings, eventually, program, run, wait_for};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// Configuration files in a folder, checked by the programs.
struct Files {
    folder: TempDir,
    pki: Pki,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::make(folder.path().join("pki"));
        Self { folder, pki }
    }

    fn service(&self) -> String {
        Settings::default().service_file(self.folder.path(), &self.pki)
    }

    fn agent(&self) -> String {
        Settings::default().agent_file(self.folder.path(), &self.pki)
    }

    /// Whether the program accepts the file, and its output.
    fn check(&self, name: &str, text: &str) -> (bool, String) {
        let path = self.folder.path().join("checked.toml");
        fs::write(&path, text).unwrap();
        check_config(name, &path)
    }

    fn refused(&self, name: &str, text: &str, words: &[&str]) {
        let (content, printed) = self.check(name, text);
        assert!(!content, "{text}");
        for word in words {
            assert!(printed.contains(word), "{word:?} is not in: {printed}");
        }
    }
}

fn check_config(name: &str, path: &Path) -> (bool, String) {
    let output = checked(name, path);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The program's output for a file that it accepts.
fn check_config_aloud(name: &str, path: &Path) -> (bool, String) {
    let output = checked(name, path);
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn checked(name: &str, path: &Path) -> Output {
    let mut command = Command::new(program(name));
    run(command.arg("--config").arg(path).arg("--check-config"))
}

#[test]
fn valid_configuration_files_pass() {
    let files = Files::new();
    for (name, text) in [("dpu-service", files.service()), ("host-shim-agent", files.agent())] {
        let (content, printed) = files.check(name, &text);
        assert!(content, "{name}: {printed}");
    }
}

/// Problems of a program's certificates, with the words that report them.
#[test]
fn invalid_certificates_are_named() {
    let files = Files::new();
    let programs = [
        ("dpu-service", files.service(), ("dpu", "dpu-1"), ("host", "node-1")),
        ("host-shim-agent", files.agent(), ("host", "node-1"), ("operator", "admin")),
    ];
    for (program, good, (role, name), (other_role, other_name)) in programs {
        let own = format!("{role}-{name}");
        let other = format!("{other_role}-{other_name}");
        let replaced = |ending: &str, by: &str| {
            good.replace(&format!("{own}.{ending}"), &format!("{by}.{ending}"))
        };
        files.refused(program, &replaced("crt", "none"), &["checked.toml", "none.crt", "No such"]);
        files.refused(program, &replaced("key", "none"), &["none.key", "No such"]);
        files.refused(program, &replaced("key", &other), &["does not belong to certificate"]);
        files.refused(program, &good.replace("ca.crt", "ca.key"), &["ca.key"]);
        let of_another = good.replace(&own, &other);
        files.refused(program, &of_another, &[&other, &format!("needs one of role {role}")]);
        let key = files.pki.key(role, name);
        fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        files.refused(program, &good, &["chmod 600"]);
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    }
}

/// An ordinary user cannot create files of other users.
#[test]
fn foreign_configuration_files_are_refused() {
    let files = Files::new();
    for (program, good, (role, name)) in [
        ("dpu-service", files.service(), ("dpu", "dpu-1")),
        ("host-shim-agent", files.agent(), ("host", "node-1")),
    ] {
        let certificate = files.pki.certificate(role, name);
        let ca = certificate.with_file_name("ca.crt");
        for path in [files.pki.key(role, name), certificate, ca] {
            let owner = fs::metadata(&path).unwrap().uid();
            if chown(&path, Some(4711), None).is_ok() {
                let named = format!("{} belongs to user 4711", path.display());
                files.refused(program, &good, &[&named, "chown "]);
                chown(&path, Some(owner), None).unwrap();
            } else {
                assert!(!is_root_of_the_machine(), "root can't give {} away", path.display());
            }
        }
    }
}

/// Whether this process has all user IDs of the machine.
fn is_root_of_the_machine() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[test]
fn unknown_key_is_refused_with_suggestion() {
    let files = Files::new();
    let service = files.service().replace("state_dir", "state_dri");
    files.refused("dpu-service", &service, &["checked.toml:2", "state_dri", "`state_dir`"]);
    let agent = files.agent().replace("endpoint", "endpiont");
    files.refused("host-shim-agent", &agent, &["checked.toml:6", "endpiont", "`endpoint`"]);
}

/// The subnet of `blue` in another layer-2 domain, with a route on the DPU.
const ROUTED_IN_VLAN_7: &str = r#"
[[network]]
name = "red"
vlan = 7
gateway_mode = "dpu"
subnets = [{ cidr = "10.1.128.0/17", gateway = "10.1.128.1" }]
"#;

#[test]
fn invalid_values_are_refused_by_name() {
    let files = Files::new();
    let with = |section: &str| format!("{}\n{section}", files.service());
    let red =
        |subnet: &str| with(&format!("[[network]]\nname = \"red\"\n[[network.subnets]]\n{subnet}"));
    let cases = [
        (red("cidr = \"10.1.128.0/17\""), ["red", "10.1.0.0/16"]),
        (red("cidr = \"10.9.0.0/24\"\ngateway = \"10.8.0.1\""), ["red", "10.8.0.1"]),
        (red("cidr = \"10.9.0.1/24\""), ["red", "10.9.0.0/24"]),
        (red("cidr = \"fe80::/64\""), ["red", "link-local"]),
        (red("cidr = \"fe80:0:0:7::/64\""), ["red", "link-local"]),
        (with("[[network]]\nname = \"blue\""), ["blue", "rename one"]),
        (with("[[network]]\nname = \"red\"\npool = \"defualt\""), ["red", "defualt"]),
        (with("[[network]]\nname = \"red\"\nvlan = 4095"), ["red", "4095"]),
        (with(ROUTED_IN_VLAN_7), ["\"red\" in VLAN 7", "gateway_mode"]),
        (with("[[host]]\nname = \"node-2\"\npfs = [\"p0\"]"), ["node-2", "p0"]),
    ];
    for (text, words) in &cases {
        files.refused("dpu-service", text, words);
    }
}

#[test]
fn configuration_without_hosts_is_refused() {
    let files = Files::new();
    let text = files.service();
    // Pools and networks need hosts.
    let (without, _) = text.split_once("[[host]]").unwrap();
    files.refused("dpu-service", without, &["no [[host]]"]);
}

#[test]
fn configuration_without_networks_is_reported() {
    let lab = Lab::start(&Settings { networks: String::new(), ..Settings::default() });
    let status = lab.operator().output(&["status"]);
    assert!(status.contains("no network"), "{status}");
    let (content, printed) =
        check_config_aloud("dpu-service", &lab.path().join("dpu-service.toml"));
    assert!(content && printed.contains("no [[network]]"), "{printed}");
}

/// EX_CONFIG of sysexits.h, for the units' `RestartPreventExitStatus`.
const BAD_CONFIGURATION: i32 = 78;

#[test]
fn invalid_file_ends_start_and_check_alike() {
    let files = Files::new();
    let path = files.folder.path().join("checked.toml");
    for (name, text, unit) in [
        ("dpu-service", files.service(), "dpu-offload-service.service"),
        ("host-shim-agent", files.agent(), "dpu-offload-agent.service"),
    ] {
        let without_sense = "state_dir = \"state\"\nlog.level = \"mtls=loud\"\n";
        let without_state_dir = text.lines().filter(|line| !line.starts_with("state_dir"));
        let without_state_dir: Vec<_> = without_state_dir.collect();
        let two = format!("{without_sense}{}", without_state_dir.join("\n"));
        for (text, mistakes) in [(&*two, 2), ("nonsense = 1", 1)] {
            fs::write(&path, text).unwrap();
            for arguments in [["--check-config"].as_slice(), &[]] {
                let mut command = Command::new(program(name));
                let output = run(command.arg("--config").arg(&path).args(arguments));
                let printed = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(BAD_CONFIGURATION), "{name}: {printed}");
                let lines = printed.lines().filter(|line| line.contains("checked.toml"));
                assert_eq!(
                    (lines.count(), printed.lines().count()),
                    (mistakes, mistakes),
                    "{printed}"
                );
            }
        }
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/systemd").join(unit);
        let unit = fs::read_to_string(unit).unwrap();
        assert!(unit.contains(&format!("RestartPreventExitStatus={BAD_CONFIGURATION}\n")));
    }
}

#[test]
fn relative_certificates_and_expiry_are_reported() {
    let files = Files::new();
    let folder = format!("{}/", files.folder.path().display());
    let programs = [
        ("dpu-service", files.service(), files.pki.certificate("dpu", "dpu-1")),
        ("host-shim-agent", files.agent(), files.pki.certificate("host", "node-1")),
    ];
    for (name, text, certificate) in programs {
        let (path, key) = (files.folder.path().join("checked.toml"), format!("{folder}pki/"));
        fs::write(&path, text.replace(&key, "pki/")).unwrap();
        let mut command = Command::new(program(name));
        command.current_dir("/").arg("--config").arg(&path).arg("--check-config");
        let output = run(&mut command);
        let printed = String::from_utf8(output.stdout).unwrap();
        let start = format!("certificate {} of ", certificate.display());
        let line = printed.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
        assert!(line.contains(" valid until 20") && line.contains("ca.crt until 20"), "{printed}");

        let whole = fs::read(&certificate).unwrap();
        fs::write(&certificate, &whole[..whole.len() / 2]).unwrap();
        files.refused(name, &text, &["it ends before its line \"-----END CERTIFICATE-----\""]);
    }
}

#[test]
fn missing_configuration_file_is_named() {
    for name in ["dpu-service", "host-shim-agent"] {
        let (content, printed) = check_config(name, Path::new("/nowhere/file.toml"));
        assert!(!content && printed.contains("/nowhere/file.toml"), "{printed}");
    }
}

#[test]
fn pool_beyond_card_is_reported() {
    let lab = Lab::start(&Settings { pool: 8, ..Settings::default() });
    let pool = &lab.operator().get("pools")[0];
    assert_eq!(pool["name"], "default");
    assert_eq!(pool["free"], 4, "{pool}");
    assert_eq!(pool["absent"], 4, "{pool}");
    let _ = lab.add("blue", &Netns::new("pod"), "eth0").result();
    lab.assert_invariants();
}

#[test]
fn vlan_works_or_is_refused() {
    let networks =
        "[[network]]\nname = \"blue\"\ndefault = true\n[[network]]\nname = \"red\"\nvlan = 7\n";
    let lab = Lab::start(&Settings { networks: networks.into(), ..Settings::default() });
    let pod = Netns::new("pod");
    let shown = lab.operator().output(&["status"]).contains("vlan");
    let can = lab.vswitch.is_some() || shown && bridge_filters_vlans();
    let answer = lab.add("red", &pod, "eth0");
    if can {
        let _ = answer.result();
        lab.assert_invariants();
    } else {
        answer.fails(109, &["red", "7"]);
        lab.assert_clean_slate();
    }
    let _ = lab.add("blue", &Netns::new("other"), "eth0").result();
}

/// Asks the kernel through an external tool.
pub(crate) fn bridge_filters_vlans() -> bool {
    let netns = Netns::new("probe");
    // The name must not be "br": ip takes that for "broadcast".
    netns.ip(&["link", "add", "br0", "type", "bridge"]);
    let mut set = netns.command("ip");
    set.args(["link", "set", "br0", "type", "bridge", "vlan_filtering", "1"]);
    run(&mut set).status.success()
}

#[test]
fn networks_reload_and_bad_file_changes_nothing() {
    let lab = Lab::start(&Settings::default());
    let mut settings = Settings::default();
    settings
        .networks
        .push_str("[[network]]\nname = \"late\"\n[[network.subnets]]\ncidr = \"10.7.0.0/24\"\n");
    lab.configure_service(&settings);
    lab.service.signal(Signal::SIGHUP);
    let names = || -> Vec<String> {
        let networks = lab.operator().get("networks");
        networks.iter().map(|n| n["network"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let has_late = || names().contains(&"late".to_owned()).then_some(());
    assert!(eventually(Duration::from_secs(10), has_late).is_some(), "{:?}", names());
    let _ = lab.add("late", &Netns::new("pod"), "eth0").result();

    let before = names();
    let path: PathBuf = lab.path().join("dpu-service.toml");
    fs::write(&path, "nonsense = 1\n").unwrap();
    lab.service.signal(Signal::SIGHUP);
    let reported = || lab.service.log().contains("nonsense").then_some(());
    assert!(eventually(Duration::from_secs(10), reported).is_some(), "{}", lab.service.log());
    assert_eq!(names(), before);
    lab.assert_invariants();
}

const LIMIT: Duration = Duration::from_secs(20);

/// Number of times that the service has loaded its file.
fn loads(lab: &Lab) -> usize {
    lab.service.log().matches("configuration in force").count()
}

/// Writes the service's file, reloads it by SIGHUP and waits.
fn load(lab: &Lab, settings: &Settings) {
    let before = loads(lab);
    lab.configure_service(settings);
    lab.service.signal(Signal::SIGHUP);
    wait_for("the file to be in force", LIMIT, || (loads(lab) > before).then_some(()));
}

/// The digest by another program.
fn sha256(path: &Path) -> String {
    let output = run(Command::new("sha256sum").arg(path));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn reverted_file_is_in_force() {
    let lab = Lab::start(&Settings::default());
    let mut late = Settings::default();
    late.networks.push_str("[[network]]\nname = \"late\"\n");
    let names = || lab.operator().get("networks");
    let has_late = || names().iter().any(|it| it["network"]["name"] == "late");
    // Often enough that some pair of changes falls between two looks of the service.
    for _ in 0..3 {
        load(&lab, &late);
        lab.configure_service(&Settings::default());
        wait_for("the file as it was", LIMIT, || (!has_late()).then_some(()));
    }
}

#[test]
fn status_shows_digest_of_loaded_file() {
    let lab = Lab::start(&Settings::default());
    let path = lab.path().join("dpu-service.toml");
    let shown = |digest: &str| lab.operator().output(&["status"]).contains(digest);
    let first = sha256(&path);
    assert!(shown(&first), "{first} is not in {}", lab.operator().output(&["status"]));

    fs::write(&path, "nonsense = 1\n").unwrap();
    lab.service.signal(Signal::SIGHUP);
    wait_for("a status that has the mistake", LIMIT, || shown("nonsense").then_some(()));
    assert!(shown(&first) && !shown(&sha256(&path)));

    let mut late = Settings::default();
    late.networks.push_str("[[network]]\nname = \"late\"\n");
    load(&lab, &late);
    wait_for("another digest", LIMIT, || shown(&sha256(&path)).then_some(()));
    assert!(!shown(&first));
}
