//! The floor: the netlink requests that any program needs to attach and detach a netdev with a representor, and nothing
//! else. On the DPU one batch adds the representor to a bridge and adds the FDB entry of the netdev's MAC address. On
//! the host one request moves and renames the netdev, and one batch configures it.

use std::{net::IpAddr, time::Duration};

use e2e::Stopwatch;
use netlink::{
    Bridge, BridgePort, IpNetwork, LinkChange, MacAddress, Request, Route, Rtnl, VethEnd,
};

use crate::turns::Network;

/// Index of every moved netdev in its pod, so that the batch needs no lookup.
const INDEX: u32 = 1000;

/// Index of `lo` in every namespace.
const LOOPBACK: u32 = 1;

/// The port neither learns addresses nor receives frames for unknown ones.
const SETTLED: BridgePort = BridgePort {
    learning: Some(false),
    locked: None,
    isolated: None,
    unicast_flood: Some(false),
    multicast_flood: None,
    broadcast_flood: None,
    hairpin: None,
    proxy_arp: None,
};

/// Address families of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    Both,
}

/// Veth ends in their own namespace, and pods for them.
pub(crate) struct Floor {
    families: Families,
    host: e2e::Netns,
    dpu: e2e::Netns,
    bridge: u32,
    pods: Vec<e2e::Netns>,
    pairs: Vec<Pair>,
}

/// A netdev and its representor.
#[derive(Clone, Copy)]
struct Pair {
    link: u32,
    mac: MacAddress,
    representor: u32,
}

impl Floor {
    pub(crate) const NAME: &str = "floor: bare netlink";

    pub(crate) fn new(count: usize, families: Families) -> Self {
        let (host, dpu) = (e2e::Netns::new("floor-host"), e2e::Netns::new("floor-dpu"));
        let (here, there) = (host.open(), dpu.open());
        let mut rtnl = Rtnl::open_in(&here).unwrap();
        let mut representors = Rtnl::open_in(&there).unwrap();
        representors.change(Request::add_bridge("bridge", &Bridge::default())).unwrap();
        let bridge = representors.link_by_name("bridge").unwrap().unwrap().index;
        representors.change_link(bridge, &LinkChange::new().up()).unwrap();
        let pairs = (0..count).map(|number| {
            let (name, other) = (format!("f{number}"), format!("r{number}"));
            let (end, peer) = (VethEnd::new(&name), VethEnd::new(&other).netns(&there));
            rtnl.change(Request::add_veth(&end, &peer)).unwrap();
            let link = rtnl.link_by_name(&name).unwrap().unwrap();
            let representor = representors.link_by_name(&other).unwrap().unwrap().index;
            Pair { link: link.index, mac: link.mac.unwrap(), representor }
        });
        let pairs = pairs.collect();
        let pods = (0..count).map(|_| e2e::Netns::new("floor-pod")).collect();
        Self { families, host, dpu, bridge, pods, pairs }
    }

    /// Attaches a pod. Returns the duration of the move.
    pub(crate) fn attach(&self, number: usize) -> Duration {
        let Pair { link, mac, representor } = self.pairs[number];
        let mut dpu = Rtnl::open_in(&self.dpu.open()).unwrap();
        dpu.batch(&[
            Request::change_link(representor, &LinkChange::new().master(Some(self.bridge))),
            Request::add_fdb(representor, mac, None),
            Request::set_bridge_port(representor, &SETTLED),
            Request::change_link(representor, &LinkChange::new().up()),
        ])
        .unwrap();
        let mut host = Rtnl::open_in(&self.host.open()).unwrap();
        let pod = self.pods[number].open();
        let change = LinkChange::new().netns(&pod).name("eth0").new_index(INDEX);
        let begun = Stopwatch::start();
        host.change_link(link, &change).unwrap();
        let moving = begun.elapsed();
        let mut inside = Rtnl::open_in(&pod).unwrap();
        inside.batch(&configuration(number, self.families)).unwrap();
        moving
    }

    pub(crate) fn detach(&self, number: usize) {
        let host = self.host.open();
        let mut inside = Rtnl::open_in(&self.pods[number].open()).unwrap();
        let Pair { link, representor, .. } = self.pairs[number];
        let name = format!("f{number}");
        let change = LinkChange::new().netns(&host).name(name).new_index(link).down();
        inside.change_link(INDEX, &change).unwrap();
        let mut dpu = Rtnl::open_in(&self.dpu.open()).unwrap();
        dpu.batch(&[
            Request::change_link(representor, &LinkChange::new().down()),
            Request::change_link(representor, &LinkChange::new().master(None)),
        ])
        .unwrap();
    }
}

impl Network for Floor {
    fn add(&self, pod: usize) {
        self.attach(pod);
    }

    fn del(&self, pod: usize) {
        self.detach(pod);
    }
}

/// Sets both links up, and adds an address and a default route of each family.
fn configuration(number: usize, families: Families) -> Vec<Request<'static>> {
    let host = number + 2;
    let mut requests = vec![
        Request::change_link(LOOPBACK, &LinkChange::new().up()),
        Request::change_link(INDEX, &LinkChange::new().up()),
    ];
    let v4 = format!("10.9.{}.{}/16", host / 250, host % 250);
    requests.extend(address_and_route(&v4, "0.0.0.0/0", "10.9.255.254"));
    if families == Families::Both {
        requests.extend(address_and_route(&format!("fd00:9::{host:x}/64"), "::/0", "fd00:9::1"));
    }
    requests
}

fn address_and_route(address: &str, destination: &str, gateway: &str) -> [Request<'static>; 2] {
    let (address, gateway): (IpNetwork, IpAddr) =
        (address.parse().unwrap(), gateway.parse().unwrap());
    let route = Route::new(destination.parse().unwrap(), INDEX).via(gateway).on_link();
    [Request::add_address(INDEX, address), Request::add_route(&route)]
}
