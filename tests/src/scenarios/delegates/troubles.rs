//! Other plugins that misbehave, vanish or outlive their caller.

use std::fs;

use serde_json::{Value, json};

use super::{
    LIMIT, assert_clean_slate, held, kept,
    others::{MAKES_A_LINK, OtherPlugins, leased_of},
    start,
};
use crate::{
    Lab, Netns, Settings,
    scenarios::several::{self, interfaces, links},
    wait_for,
};

/// A failing plugin leaves nothing behind: neither interfaces of other plugins nor ours.
///
/// # Panics
/// If anything remains.
pub fn failing_plugin_leaves_nothing(settings: &Settings) {
    let others = OtherPlugins::with_links("good", "green");
    let (lab, pod) = (&start(&others, settings), Netns::new("pod"));
    let own = links(&pod);
    let leave = r#"[ $CNI_COMMAND = ADD ] || exit 0
        nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" type veth peer name "p-$CNI_IFNAME""#;
    for (name, script, reported) in [
        ("hangs", "[ $CNI_COMMAND = ADD ] || exit 0; sleep 600", "in time"),
        ("rubbish", "echo nonsense", "no JSON object: nonsense"),
        ("talks", "yes", "more than 1048576 bytes"),
        ("refuses", r#"echo '{"code": 7, "msg": "no master"}'; exit 1"#, "no master"),
        ("dies", "kill -9 $$", "signal: 9"),
        ("empty", "exit 0", "answered nothing"),
        ("nothing", "echo '{}'", "no interface net3"),
        ("halfway", &format!("{leave}; exit 7"), "exit status: 7"),
        ("absent", "", "no plugin absent in"),
        ("old", "", "speak"),
    ] {
        match name {
            "absent" => {}
            "old" => {
                others.write_plugin(name, "");
                let path = others.path("plugins").join(name);
                let text = fs::read_to_string(&path).unwrap();
                let text = text.replace(r#"["0.4.0", "1.0.0"]"#, r#"["0.1.0"]"#);
                fs::write(&path, text).unwrap();
            }
            _ => others.write_plugin(name, script),
        }
        others.define(name, &json!([{ "type": name }]));
        let (code, text) = several::add(lab, &pod, &format!("green,good,{name}")).error();
        assert_eq!(code, 152, "{name}: {text}");
        let file = format!("{name}.conflist");
        assert!(text.contains(reported) && text.contains(&file), "{name}: {text}");
        fs::remove_file(others.path("plugins").join(name)).ok();
        others.write_plugin(name, "exit 0");
        wait_for(&format!("{name} to be taken back"), LIMIT, || {
            lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
            (kept(lab) == 0).then_some(())
        });
        assert_eq!(links(&pod), own, "{name}");
        assert_clean_slate(lab);
    }
    pod.ip(&["link", "add", "net2", "type", "veth", "peer", "name", "other"]);
    several::add(lab, &pod, "green,good").fails(128, &["net2"]);
    pod.ip(&["link", "delete", "net2"]);
    several::add(lab, &pod, "good@eth0").fails(7, &["eth0"]);
    let folder = others.path("networks");
    several::add(lab, &pod, "none").fails(101, &["file in", folder.to_str().unwrap()]);
    several::add(lab, &pod, r#"[{"name": "good", "ips": ["10.1.1.1"]}]"#)
        .fails(105, &["10.1.1.1", "green"]);
    fs::write(others.definition("broken"), "{").unwrap();
    several::add(lab, &pod, "broken").fails(151, &["broken.conflist"]);
    lab.add("good", &pod, "eth0").fails(109, &["eth0"]);
    let definition = json!({
        "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "banks", "namespace": "bank" },
        "spec": { "config": json!({ "type": "good" }).to_string() },
    });
    fs::write(others.path("networks").join("banks.json"), definition.to_string()).unwrap();
    several::add(lab, &pod, "banks").fails(141, &["NETWORK_NOT_ALLOWED", "banks.json"]);

    others.write_plugin("leaves", &format!("[ $CNI_COMMAND = DEL ] && exit 0\n{MAKES_A_LINK}"));
    others.define("leaves", &json!([{ "type": "leaves" }]));
    let _ = several::add(lab, &pod, "leaves").result();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own, "it says that the link is gone");

    fs::rename(&folder, others.path("aside")).unwrap();
    fs::write(&folder, "").unwrap();
    several::add(lab, &pod, "good").fails(151, &[folder.to_str().unwrap()]);
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.del("blue", &pod, "eth0").nothing();
    assert_clean_slate(lab);
}

/// Changes by another plugin to our interface do not reach the next pod. An ADD that does not get its configuration
/// fails.
///
/// # Panics
/// If an expectation is not met.
pub fn plugin_changes_affect_only_its_pod(settings: &Settings) {
    let others = OtherPlugins::new();
    let (lab, pod) = (&start(&others, settings), Netns::new("pod"));
    let own = links(&pod);
    for (name, what, is_harm) in [
        ("flushes", "address flush dev eth0", true),
        ("queues", "link set eth0 txqueuelen 5 group 7", false),
        ("stops", "link set eth0 down", true),
        ("stacks", "link add link eth0 name on-eth0 type macvlan", false),
        ("renames", "link set eth0 down name stolen", true),
    ] {
        let meddles = format!(r#"[ $CNI_COMMAND != ADD ] || nsenter --net="$CNI_NETNS" ip {what}"#);
        others.write_plugin(name, &format!("{meddles}\n{MAKES_A_LINK}"));
        others.define(name, &json!([{ "type": name }]));
        let answer = several::add(lab, &pod, name);
        if is_harm {
            answer.fails(152, &["eth0", &format!("{name}.conflist")]);
        } else {
            assert_eq!(interfaces(&answer.result()), ["eth0", "net1"], "{name}");
            lab.del("blue", &pod, "eth0").nothing();
        }
        assert_clean_slate(lab);
        // Upper devices end with the VF's reset, for which no caller waits.
        wait_for(&format!("{name}'s links to go"), LIMIT, || (links(&pod) == own).then_some(()));
    }
}

/// The DPU does not lease an address again while an interface has it. Here the plugin does not delete the interface,
/// and its MAC address has changed.
///
/// # Panics
/// If an expectation is not met.
pub fn address_is_held_while_interface_has_it(settings: &Settings) {
    let others = OtherPlugins::new();
    let (lab, pod) = (&start(&others, settings), Netns::new("pod"));
    others.write_plugin("clings", &format!("[ $CNI_COMMAND = DEL ] && exit 3\n{MAKES_A_LINK}"));
    others.lend_our_plugin();
    others.define("clings", &json!([{ "type": "clings", "ipam": leased_of("green") }]));
    let own = links(&pod);
    let _ = several::add(lab, &pod, "clings").result();
    pod.ip(&["link", "set", "net1", "address", "02:00:00:00:77:01"]);
    // Cause a reset of the VF, after which its attachment is forgotten.
    pod.ip(&["link", "set", "eth0", "gso_max_size", "20000"]);
    lab.del("blue", &pod, "eth0").nothing();
    assert!(links(&pod).contains("net1"));
    let reported = wait_for("what is left to be reported", LIMIT, || left(lab));
    assert!(reported.contains("exit status: 3"), "{reported}");
    refresh_vf_states(lab);
    assert!(held(lab, "green") > 0, "it is in use");

    others.write_plugin("clings", MAKES_A_LINK);
    wait_for("it to be taken back", LIMIT, || {
        lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
        (kept(lab) == 0 && held(lab, "green") == 0).then_some(())
    });
    assert_eq!((links(&pod), left(lab)), (own, None));
    assert_clean_slate(lab);
}

/// Makes the host use the last VF and free it again, and waits until the DPU knows each.
fn refresh_vf_states(lab: &Lab) {
    for (verb, is_free) in [("add", false), ("delete", true)] {
        lab.card.host.ip(&["address", verb, "192.0.2.1/24", "dev", "p0v5"]);
        wait_for(&format!("the DPU to hear of {verb}"), LIMIT, || {
            // Each comparison checks addresses; do not wait for the next one by timer.
            lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
            let vf = lab.operator().get("vfs").pop()?;
            ((vf["state"] == "VF_STATE_FREE") == is_free).then_some(())
        });
    }
}

/// Interfaces are deleted with the configuration of their creation, even if the file is gone. If the plugin is gone,
/// the interface is removed from the pod and the plugin is called when it is back.
///
/// # Panics
/// If an expectation is not met.
pub fn foreign_interfaces_are_deleted_without_their_files(settings: &Settings) {
    let others = OtherPlugins::new();
    let mut lab = start(&others, settings);
    let pod = Netns::new("pod");
    others.write_plugin("good", MAKES_A_LINK);
    others.define("good", &json!([{ "type": "good", "told": "then" }]));
    let own = links(&pod);
    let result = several::add(&lab, &pod, "green,good").result();
    fs::remove_file(others.definition("good")).unwrap();
    assert_eq!(several::add(&lab, &pod, "green,good").result(), result);
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    crate::scenarios::life::check(&lab, "blue", &pod, &result).nothing();
    let deleted = others.path("deleted");
    assert!(!deleted.exists(), "a restart takes nothing from a pod");

    let plugin = others.path("plugins").join("good");
    let aside = others.path("aside");
    fs::rename(&plugin, &aside).unwrap();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own);
    lab.assert_clean_slate();
    assert_eq!(kept(&lab), 1);
    assert!(left(&lab).unwrap().contains("no plugin good"));
    fs::rename(&aside, &plugin).unwrap();
    lab.agent.crash();
    lab.start_agent();
    wait_for("the plugin to be called", LIMIT, || (kept(&lab) == 0).then_some(()));
    let reported = fs::read_to_string(&deleted).unwrap();
    let document = reported.lines().next().unwrap().split_once(' ').unwrap().1;
    let document: Value = serde_json::from_str(document).unwrap();
    assert_eq!(document["told"], "then");
    assert_eq!(document["prevResult"]["interfaces"][0]["name"], "net2");
    lab.wait_until_good();
    assert_eq!(left(&lab), None);
    assert_clean_slate(&lab);
}

/// The doctor's reason why plugins have not deleted interfaces.
fn left(lab: &Lab) -> Option<String> {
    let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut differences = found["findings"].as_array().unwrap().iter();
    let left = differences.find(|difference| difference["code"] == "DELEGATE_LEFT")?;
    Some(left["message"].as_str().unwrap().to_owned())
}

/// The end of a pod ends its interfaces, and their plugins are called.
///
/// # Panics
/// If anything remains.
pub fn ended_pod_leaves_no_foreign_interfaces(settings: &Settings) {
    let others = OtherPlugins::with_links("good", "green");
    let lab = &start(&others, settings);
    let pod = Netns::new("pod");
    let _ = several::add(lab, &pod, "good,green").result();
    drop(pod);
    wait_for("the plugin to be called", LIMIT, || (kept(lab) == 0).then_some(()));
    let reported = fs::read_to_string(others.path("deleted")).unwrap();
    assert!(reported.starts_with(' '), "the plugin gets no namespace: {reported}");
    assert_clean_slate(lab);
}

/// The agent waits for a plugin of its predecessor that still works on an interface before it deletes the interface.
///
/// # Panics
/// If anything remains.
pub fn plugin_that_outlives_the_agent_finishes_first(settings: &Settings) {
    let others = OtherPlugins::new();
    let mut lab = start(&others, settings);
    let pod = Netns::new("pod");
    let own = links(&pod);
    let waits = format!(
        "[ $CNI_COMMAND = ADD ] && {{ touch $STATE/begun; read -r _ < $STATE/gate; }}\n{MAKES_A_LINK}"
    );
    others.write_plugin("slow", &waits);
    others.lend_our_plugin();
    others.define("slow", &json!([{ "type": "slow", "ipam": leased_of("green") }]));
    let gate = others.path("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let call = several::call(&lab, "ADD", &pod, "slow");
    let mut caller = call.begin(&lab.card.host);
    let begun = others.path("begun");
    wait_for("the plugin to begin", LIMIT, || begun.exists().then_some(()));
    lab.agent.crash();
    caller.kill().unwrap();
    caller.wait().unwrap();
    lab.start_agent();
    lab.wait_until_good();
    assert_eq!(kept(&lab), 1, "nothing is taken back that is still being made");
    refresh_vf_states(&lab);
    assert!(held(&lab, "green") > 0, "it may set its address still");
    fs::write(&gate, "go\n").unwrap();
    wait_for("it to be taken back", LIMIT, || {
        lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
        (kept(&lab) == 0 && held(&lab, "green") == 0).then_some(())
    });
    assert_eq!(links(&pod), own);
    assert_clean_slate(&lab);
}
