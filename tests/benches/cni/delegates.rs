//! What a network that another plugin makes costs a pod, beside that plugin's own time.

use std::{
    fs,
    process::{Command, Stdio},
};

use e2e::{Lab, Netns, Settings};
use serde_json::{Value, json};

use crate::{
    peers::folder_of,
    phases::{logged, microseconds},
    pods::{Pods, run},
    sample::Sample,
};

/// Pods with such a network, without, and of the plugin alone.
const PODS: usize = 30;
const NETWORK: &str = "bench-bridge";
const PLUGIN: &str = "bridge";

/// Prints all three, in turn.
pub(crate) fn print() {
    println!(
        "\n### A further network by `{PLUGIN}` with host-local, one caller, N={PODS} each, in turn\n"
    );
    let Some(plugins) = folder_of(PLUGIN) else {
        println!("Not installed here (containernetworking-plugins).");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let leases = folder.path().join("leases");
    let definition = json!({
        "cniVersion": "1.0.0",
        "name": NETWORK,
        "type": PLUGIN,
        "bridge": "bench0",
        "ipam": { "type": "host-local", "dataDir": leases, "ranges": [[{ "subnet": "10.77.0.0/16" }]] },
    });
    fs::write(folder.path().join("bench.conf"), definition.to_string()).unwrap();
    let agent = format!("[delegates]\nnetworks = {:?}\nplugins = [{plugins:?}]\n", folder.path());
    let vfs = u32::try_from(2 * PODS).unwrap();
    let lab = Lab::start(&Settings { agent, ..Settings::with_vfs(vfs) });
    let (plain, both) =
        (Pods::new(&lab, PODS), Pods::on_networks(&lab, PODS, vec![NETWORK.into()]));
    let bare: Vec<_> = (0..PODS).map(|_| Netns::new("bare")).collect();
    let plugin = |verb: &str, pod: &Netns| call(plugins, verb, pod, &definition);

    println!("| what | ours p50 ms | with the network p50 ms | the plugin alone p50 ms |");
    println!("|---|---|---|---|");
    let [mut ours, mut whole, mut alone] = [(); 3].map(|()| Sample::default());
    for (number, pod) in bare.iter().enumerate() {
        ours.time_apart(|| plain.add(number));
        whole.time_apart(|| both.add(number));
        alone.time_apart(|| plugin("ADD", pod));
    }
    print_row("ADD", &ours, &whole, &alone);
    let besides = Besides::of(&lab, &whole, &ours);
    let [mut ours, mut whole, mut alone] = [(); 3].map(|()| Sample::default());
    for (number, pod) in bare.iter().enumerate() {
        ours.time_apart(|| plain.del(number));
        whole.time_apart(|| both.del(number));
        alone.time_apart(|| plugin("DEL", pod));
    }
    print_row("DEL", &ours, &whole, &alone);
    besides.print();
}

/// What such a network costs besides the plugin, whose time by itself and amid an ADD differs by more than that.
struct Besides {
    plugin: Sample,
    /// ADDs without the time that the plugin took within them.
    without_plugin: Sample,
    /// The median of ADDs without such a network.
    plain: f64,
}

impl Besides {
    /// The ADDs were made in the order in which the agent logs what it made.
    fn of(lab: &Lab, adds: &Sample, plain: &Sample) -> Self {
        let made = logged(lab, "made by other plugins");
        assert_eq!(made.len(), adds.durations().len(), "ADDs and lines of the agent's log");
        let in_plugin = || made.iter().map(|fields| microseconds(fields, "plugins_us"));
        let without_plugin = adds.durations().iter().zip(in_plugin()).map(|(all, it)| *all - it);
        Self {
            plugin: Sample::of(in_plugin()),
            without_plugin: Sample::of(without_plugin),
            plain: plain.p50(),
        }
    }

    fn print(&self) {
        let Self { plugin, without_plugin, plain } = self;
        println!("\n| of such an ADD | p50 ms | p99 ms |\n|---|---|---|");
        println!("| the plugin, as the agent calls it | {} |", plugin.cells());
        println!("| all but the plugin | {} |", without_plugin.cells());
        println!(
            "| more than an ADD without the network | {:.2} | |",
            without_plugin.p50() - plain
        );
    }
}

fn print_row(what: &str, ours: &Sample, whole: &Sample, alone: &Sample) {
    let (ours, whole, alone) = (ours.p50(), whole.p50(), alone.p50());
    println!("| {what} | {ours:.2} | {whole:.2} | {alone:.2} |");
}

/// Executes the plugin in this process' own namespace, as the agent does in the host's.
fn call(plugins: &str, verb: &str, pod: &Netns, definition: &Value) {
    let mut command = Command::new(format!("{plugins}/{PLUGIN}"));
    command
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", pod.name())
        .env("CNI_NETNS", pod.path())
        .env("CNI_IFNAME", "net1")
        .env("CNI_PATH", plugins)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    run(command, &definition.to_string());
}
