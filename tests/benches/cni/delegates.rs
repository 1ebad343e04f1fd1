//! The cost of a network of another plugin, and that plugin's own time.

use std::{
    fs,
    process::{Command, Stdio},
};

use e2e::{Lab, Netns, Settings};
use serde_json::{Value, json};

use crate::{
    peers::{NOT_INSTALLED, folder_of},
    phases::{logged, microseconds},
    pods::{Pods, run},
    sample::Sample,
    table::{Cell, Report, Row, Table},
    timing::Pauses,
    turns::Network,
};

/// Pods with such a network, pods without, and calls of the plugin alone.
const PODS: usize = 30;
const NETWORK: &str = "bench-bridge";
const PLUGIN: &str = "bridge";

/// Measures all three in turn.
pub(crate) fn print(report: &mut Report) {
    let title = format!(
        "A further network by `{PLUGIN}` with host-local, one caller, N={PODS} each, in turn"
    );
    let Some(plugins) = folder_of(PLUGIN) else {
        println!("\n### {title}\n\n{NOT_INSTALLED}");
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

    let columns = ["what", "ours p50 ms", "with the network p50 ms", "the plugin alone p50 ms"];
    let mut table = report.table(&title, &columns);
    let pauses = Pauses::apart(PODS);
    let [mut ours, mut whole, mut alone] = [(); 3].map(|()| Sample::default());
    for (number, pod) in bare.iter().enumerate() {
        pauses.time(number, &mut ours, || plain.add(number));
        pauses.time(number, &mut whole, || both.add(number));
        pauses.time(number, &mut alone, || plugin("ADD", pod));
    }
    print_row(&mut table, "ADD", &ours, &whole, &alone);
    let overhead = Overhead::of(&lab, &whole, &ours);
    let [mut ours, mut whole, mut alone] = [(); 3].map(|()| Sample::default());
    for (number, pod) in bare.iter().enumerate() {
        pauses.time(number, &mut ours, || plain.del(number));
        pauses.time(number, &mut whole, || both.del(number));
        pauses.time(number, &mut alone, || plugin("DEL", pod));
    }
    print_row(&mut table, "DEL", &ours, &whole, &alone);
    overhead.print(report);
}

/// The overhead of such a network without the plugin's own time, which varies by more than the overhead.
struct Overhead {
    plugin: Sample,
    /// Durations of ADDs minus the plugin's time within them.
    without_plugin: Sample,
    /// The median of ADDs without such a network.
    plain: f64,
}

impl Overhead {
    /// `adds` and the agent's log have the same order.
    fn of(lab: &Lab, adds: &Sample, plain: &Sample) -> Self {
        let made = logged(&lab.agent, "made by other plugins");
        assert_eq!(made.len(), adds.durations().len(), "ADDs and lines of the agent's log");
        let in_plugin = || made.iter().map(|fields| microseconds(fields, "plugins_us"));
        let without_plugin = adds.durations().iter().zip(in_plugin()).map(|(all, it)| *all - it);
        Self {
            plugin: Sample::of(in_plugin()),
            without_plugin: Sample::of(without_plugin),
            plain: plain.p50(),
        }
    }

    fn print(&self, report: &mut Report) {
        let Self { plugin, without_plugin, plain } = self;
        let title = format!("An ADD with a network by `{PLUGIN}`");
        let mut table = report.table(&title, &["of such an ADD", "p50 ms", "p99 ms"]);
        table.row(Row::of("the plugin, as the agent calls it").and_all(plugin.cells()));
        table.row(Row::of("all but the plugin").and_all(without_plugin.cells()));
        let more = without_plugin.p50() - plain;
        table.row(Row::of("more than an ADD without the network").and(more).and(Cell::Nothing));
    }
}

fn print_row(table: &mut Table<'_>, what: &str, ours: &Sample, whole: &Sample, alone: &Sample) {
    table.row(Row::of(what).and(ours.p50()).and(whole.p50()).and(alone.p50()));
}

/// Executes the plugin in this process's own namespace, as the agent does in the host's.
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
