//! Programs of the release before beside today's: what docs/RELEASES.md promises.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{
    Lab, Netns, Settings, run,
    scenarios::{
        life::{assert_in_order, check, collect_and_detach, outlive_restarts},
        outages::{Pair, ids},
        several,
    },
    wait_for,
};

/// What is replaced together.
const SERVICE: &[&str] = &["dpu-service"];
const HOST: &[&str] = &["host-shim", "host-shim-agent"];

const LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

/// The folder of the programs of the release before, which are built if they have not been.
fn release_before() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/release-before");
    let output = run(&mut Command::new(script));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// Has these programs started from the release before in a lab's folder.
fn install_old(folder: &Path, programs: &[&str]) {
    let installed = folder.join("bin");
    fs::create_dir_all(&installed).unwrap();
    for program in programs {
        fs::copy(release_before().join(program), installed.join(program)).unwrap();
    }
}

fn uninstall_old(lab: &Lab, programs: &[&str]) {
    for program in programs {
        fs::remove_file(lab.path().join("bin").join(program)).unwrap();
    }
}

/// A lab of which these programs are of the release before. Its networks are spelled as that one reads them.
fn mixed(programs: &[&str]) -> Lab {
    let mut settings = Settings::default();
    for list in ["subnet", "route", "rule"] {
        settings.networks = settings
            .networks
            .replace(&format!("[[network.{list}s]]"), &format!("[[network.{list}]]"));
    }
    Lab::start_with(&settings, |folder| install_old(folder, programs))
}

/// Everything that a runtime asks for, and recovery, of a mixed lab.
fn assert_works(mut lab: Lab) {
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    outlive_restarts(&mut lab, &pair);
    assert_eq!(ids(&lab), before);
    lab.service.crash();
    lab.del("blue", &pair.a, "eth0").nothing();
    lab.start_service();
    lab.wait_until_good();
    wait_for("the release to be delivered", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    let _ = lab.add("blue", &pair.a, "eth0").result();
    lab.assert_invariants();
    collect_and_detach(&lab, &pair);
}

#[test]
fn a_host_of_the_release_before_works_with_todays_service() {
    assert_works(mixed(HOST));
}

#[test]
fn a_service_of_the_release_before_works_with_todays_host() {
    assert_works(mixed(SERVICE));
}

/// While a package is replaced, one of the two is still of the release before.
#[test]
fn plugin_and_agent_of_two_releases_tell_the_runtime_which_vf_a_pod_has() {
    for program in HOST {
        let lab = mixed(&[program]);
        let pod = Netns::new("pod");
        let result = lab.add("blue", &pod, "eth0").result();
        let device = &lab.operator().get("attachments")[0]["vf"]["device"];
        assert_eq!(result["interfaces"][0]["pciID"], *device, "{program}: {result}");
        check(&lab, "blue", &pod, &result).nothing();
        lab.del("blue", &pod, "eth0").nothing();
        lab.assert_clean_slate();
    }
}

/// A peer of before would leave out in silence what it does not know.
#[test]
fn several_networks_are_refused_where_a_program_is_of_the_release_before() {
    for programs in [SERVICE, &HOST[1..]] {
        let lab = mixed(programs);
        let pod = Netns::new("pod");
        let (_, text) = several::add(&lab, &pod, "green").error();
        assert!(text.contains("UNSUPPORTED") && text.contains("upgrade it"), "{text}");
        lab.del("blue", &pod, "eth0").nothing();
        lab.assert_clean_slate();
    }
}

/// What pods and operators have from the release before outlives the upgrade of one side and then of the
/// other, between which both serve.
fn assert_upgrades(sides: [&[&str]; 2]) {
    let mut lab = mixed(&[SERVICE, HOST].concat());
    let network = lab.path().join("red.json");
    fs::write(&network, r#"{ "name": "red", "subnets": [{ "cidr": "10.8.0.0/24" }] }"#).unwrap();
    let _ = lab.operator().says(&["apply", "-f", network.to_str().unwrap()]);
    let (red, gone) = (Netns::new("red"), Netns::new("gone"));
    let of_red = lab.add("red", &red, "eth0").result();
    let _ = lab.add("green", &gone, "eth0").result();
    let pair = Pair::attach(&lab);

    lab.service.crash();
    lab.del("green", &gone, "eth0").nothing();
    lab.agent.crash();
    uninstall_old(&lab, sides[0]);
    lab.start_service();
    lab.start_agent();
    lab.wait_until_good();
    wait_for("the release to be delivered", LIMIT, || (ids(&lab).len() == 3).then_some(()));
    let before = ids(&lab);
    assert_in_order(&lab, &pair);
    assert_eq!(lab.add("red", &red, "eth0").result(), of_red);

    lab.service.stop();
    lab.agent.stop();
    uninstall_old(&lab, sides[1]);
    lab.start_agent();
    lab.start_service();
    lab.wait_until_good();
    outlive_restarts(&mut lab, &pair);
    assert_eq!(lab.add("red", &red, "eth0").result(), of_red);
    assert_eq!(ids(&lab), before);

    lab.del("red", &red, "eth0").nothing();
    collect_and_detach(&lab, &pair);
}

#[test]
fn journal_and_records_of_the_release_before_outlive_an_upgrade_of_the_service_and_then_of_the_host()
 {
    assert_upgrades([SERVICE, HOST]);
}

#[test]
fn journal_and_records_of_the_release_before_outlive_an_upgrade_of_the_host_and_then_of_the_service()
 {
    assert_upgrades([HOST, SERVICE]);
}

/// Whether pods may send from any MAC address, as the service says of a network that was applied.
fn allows_spoofing(lab: &Lab, name: &str) -> bool {
    let networks = lab.operator().get("networks");
    let found = networks.iter().find(|it| it["network"]["name"] == name);
    found.unwrap()["network"]["allowMacSpoofing"] == true
}

#[test]
fn a_journal_that_names_no_sources_goes_back_to_the_release_before() {
    let mut lab = mixed(&[]);
    let levels = ["full", "mac", "off"];
    let file = lab.path().join("levels.yaml");
    let network = |(index, level): (usize, &&str)| {
        format!(
            "name: {level}\nanti_spoofing: {level}\nsubnets: [{{cidr: 10.8.{index}.0/24}}]\n---\n"
        )
    };
    fs::write(&file, levels.iter().enumerate().map(network).collect::<String>()).unwrap();
    let _ = lab.operator().says(&["apply", "-f", file.to_str().unwrap()]);
    let pods = levels.map(Netns::new);
    let attach = |lab: &Lab| {
        let pods = levels.iter().zip(&pods);
        pods.map(|(level, pod)| lab.add(level, pod, "eth0").result()).collect::<Vec<_>>()
    };
    let results = attach(&lab);

    lab.service.stop();
    install_old(lab.path(), SERVICE);
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(levels.map(|level| allows_spoofing(&lab, level)), [false, false, true]);
    assert_eq!(attach(&lab), results);

    lab.service.stop();
    uninstall_old(&lab, SERVICE);
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(attach(&lab), results);
    for network in lab.operator().get("networks") {
        let (network, name) = (&network["network"], network["network"]["name"].as_str().unwrap());
        assert!(!levels.contains(&name) || network["antiSpoofing"] == name, "{network}");
    }
    for (level, pod) in levels.iter().zip(&pods) {
        lab.del(level, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}
