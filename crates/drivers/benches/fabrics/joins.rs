//! To join a port, guarded, and to leave it: one at a time and many at once. Beside it, what Open vSwitch itself takes
//! for a port, asked for by the bare client.

use std::time::Duration;

use ovsdb::{Database, Datum, MonitoredTable, Operation, Replica, Row};

use crate::{
    median, time,
    veth_dpu::{BRIDGE, Dpu, On, OpenVswitch, Pod, at_once},
};

const PORTS: u16 = 64;
const ROUNDS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn print() {
    for on in On::EVERY {
        let dpu = Dpu::on(on, &[]);
        dpu.prepare().unwrap();
        let pods: Vec<_> = (0..PORTS).map(|number| dpu.plug(number)).collect();
        let one_by_one = |work: &dyn Fn(&Pod)| median(pods.iter().map(|pod| time(|| work(pod))));
        let (join, leave) = (|pod: &Pod| join(&dpu, pod), |pod: &Pod| leave(&dpu, pod));
        let bare = dpu.vswitch.as_ref().map(Bare::open);
        let (mut joins, mut leaves, mut bares) = (Vec::new(), Vec::new(), Vec::new());
        let names: Vec<_> = pods.iter().map(|pod| pod.settings.vf.to_string()).collect();
        for _ in 0..ROUNDS {
            bares.extend(bare.as_ref().map(|bare| bare.measure(&names)));
            joins.push(one_by_one(&join));
            leaves.push(one_by_one(&leave));
        }
        let (one_joins, one_leaves) = (median(joins.into_iter()), median(leaves.into_iter()));
        let (mut joins, mut looks, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            joins.push(time(|| at_once(&pods, join)));
            looks.push(time(|| pods.iter().for_each(|pod| look(&dpu, pod))));
            leaves.push(time(|| at_once(&pods, leave)));
        }
        let [joins, looks, leaves] = [joins, looks, leaves].map(|all| median(all.into_iter()));
        println!(
            "{on:?}: join {one_joins:.1?}, leave {one_leaves:.1?}; {PORTS} at once: join {joins:.1?} ({:.1} times as \
             fast), leave {leaves:.1?}; a close look at {PORTS}: {looks:.1?}",
            (one_joins * u32::from(PORTS)).as_secs_f64() / joins.as_secs_f64()
        );
        if bare.is_some() {
            let [join, leave, joins, leaves] =
                [0, 1, 2, 3].map(|of| median(bares.iter().map(|times: &[_; 4]| times[of])));
            println!(
                "{on:?} itself, without flows: join {join:.1?}, leave {leave:.1?}; {PORTS} in one transaction: join \
                 {joins:.1?} ({:.1} times as fast), leave {leaves:.1?}",
                (join * u32::from(PORTS)).as_secs_f64() / joins.as_secs_f64()
            );
        }
    }
}

fn join(dpu: &Dpu, pod: &Pod) {
    let port = dpu.representor(pod);
    dpu.fabric.join(&port, &pod.settings).unwrap();
    dpu.fabric.set_guard(&port, &pod.settings).unwrap();
}

fn leave(dpu: &Dpu, pod: &Pod) {
    dpu.fabric.leave(&dpu.representor(pod)).unwrap();
}

fn look(dpu: &Dpu, pod: &Pod) {
    let port = dpu.representor(pod);
    assert!(dpu.fabric.member(&port).unwrap().is_some());
    assert!(dpu.fabric.guard(&port, &pod.settings).unwrap().in_place);
}

/// A client that does no more than to write a port, and to wait until the daemon has made it.
struct Bare(Database);

impl Bare {
    fn open(vswitch: &OpenVswitch) -> Self {
        let settings = ovsdb::Settings {
            socket: vswitch.socket(),
            database: "Open_vSwitch".into(),
            tables: vec![
                MonitoredTable::new("Open_vSwitch", ["cur_cfg", "next_cfg"]),
                MonitoredTable::new("Bridge", ["name"]),
                MonitoredTable::new("Port", ["name"]),
            ],
            deadline: TIMEOUT,
        };
        Self(Database::open(&settings).unwrap())
    }

    /// What one takes to join and to leave, and what all take in one transaction: no client can have the daemon do it
    /// faster.
    fn measure(&self, names: &[String]) -> [Duration; 4] {
        let one_by_one =
            |work: &dyn Fn(&[String])| median(names.chunks(1).map(|name| time(|| work(name))));
        let join = one_by_one(&|name| self.join(name));
        let leave = one_by_one(&|name| self.leave(name));
        let joins = time(|| self.join(names));
        [join, leave, joins, time(|| self.leave(names))]
    }

    fn join(&self, names: &[String]) {
        let bridge = self.row("Bridge", BRIDGE);
        let join = |(number, name): (usize, &String)| {
            let (interface, port) = (format!("interface{number}"), format!("port{number}"));
            let name = || Datum::text(name);
            let columns = [("name", name()), ("interfaces", Datum::inserted(&interface))];
            [
                Operation::insert("Interface", &interface, [("name", name())]),
                Operation::insert("Port", &port, columns),
                Operation::add_to_set("Bridge", bridge, "ports", &Datum::inserted(&port)),
            ]
        };
        self.change(names.iter().enumerate().flat_map(join).collect());
    }

    fn leave(&self, names: &[String]) {
        let bridge = self.row("Bridge", BRIDGE);
        let leave = |name: &String| {
            let port = Datum::reference(self.row("Port", name));
            Operation::remove_from_set("Bridge", bridge, "ports", &port)
        };
        self.change(names.iter().map(leave).collect());
    }

    fn row(&self, table: &str, name: &str) -> uuid::Uuid {
        self.0.read(|replica| replica.named(table, name).map(Row::id)).unwrap().unwrap()
    }

    fn change(&self, mut operations: Vec<Operation>) {
        let root = |replica: &Replica| replica.rows("Open_vSwitch").next().map(Row::id);
        let root = self.0.read(root).unwrap().unwrap();
        operations.push(Operation::increment("Open_vSwitch", root, "next_cfg"));
        operations.push(Operation::select("Open_vSwitch", root, ["next_cfg"]));
        let outcomes = self.0.transact(&operations).unwrap();
        let wanted = outcomes.last().unwrap().rows()[0].integer("next_cfg");
        let is_done = move |replica: &Replica| {
            let done = replica.row("Open_vSwitch", root)?.integer("cur_cfg");
            (done >= wanted).then_some(())
        };
        self.0.wait(TIMEOUT, is_done).unwrap();
    }
}
