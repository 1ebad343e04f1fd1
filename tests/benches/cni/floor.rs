//! The kernel's floor: what any program has to ask of the kernel to attach and detach a netdev, and
//! nothing else. One request moves and renames it, one batch configures it.

use std::net::IpAddr;

use netlink::{IpNetwork, LinkChange, Netns, Request, Route, Rtnl, VethEnd};

/// Index of every moved netdev in its pod, so that the batch needs no look-up.
const INDEX: u32 = 1000;

/// Veth ends in a namespace of their own, and pods for them.
pub(crate) struct Floor {
    host: e2e::Netns,
    _dpu: e2e::Netns,
    pods: Vec<e2e::Netns>,
    links: Vec<u32>,
}

impl Floor {
    pub(crate) fn new(count: usize) -> Self {
        let (host, dpu) = (e2e::Netns::new("floor-host"), e2e::Netns::new("floor-dpu"));
        let (here, there) = (open(&host), open(&dpu));
        let mut rtnl = Rtnl::open_in(&here).unwrap();
        let mut representors = Rtnl::open_in(&there).unwrap();
        let links = (0..count).map(|number| {
            let (name, other) = (format!("f{number}"), format!("r{number}"));
            let (end, peer) = (VethEnd::new(&name), VethEnd::new(&other).netns(&there));
            rtnl.add_veth(&end, &peer).unwrap();
            let index = representors.link_by_name(&other).unwrap().unwrap().index;
            representors.change_link(index, &LinkChange::new().up()).unwrap();
            rtnl.link_by_name(&name).unwrap().unwrap().index
        });
        let links = links.collect();
        let pods = (0..count).map(|_| e2e::Netns::new("floor-pod")).collect();
        Self { host, _dpu: dpu, pods, links }
    }

    pub(crate) fn attach(&self, number: usize) {
        let mut host = Rtnl::open_in(&open(&self.host)).unwrap();
        let pod = open(&self.pods[number]);
        let change = LinkChange::new().netns(&pod).name("eth0").new_index(INDEX);
        host.change_link(self.links[number], &change).unwrap();
        let mut inside = Rtnl::open_in(&pod).unwrap();
        inside.batch(&configuration(number)).unwrap();
    }

    pub(crate) fn detach(&self, number: usize) {
        let host = open(&self.host);
        let mut inside = Rtnl::open_in(&open(&self.pods[number])).unwrap();
        let name = format!("f{number}");
        let change = LinkChange::new().netns(&host).name(name).new_index(self.links[number]).down();
        inside.change_link(INDEX, &change).unwrap();
    }
}

fn open(netns: &e2e::Netns) -> Netns {
    Netns::open(&netns.path()).unwrap()
}

/// Up, one address of each family, one default route of each.
fn configuration(number: usize) -> Vec<Request<'static>> {
    let host = number + 2;
    let v4: IpNetwork = format!("10.9.{}.{}/16", host / 250, host % 250).parse().unwrap();
    let v6: IpNetwork = format!("fd00:9::{host:x}/64").parse().unwrap();
    let route = |destination: &str, gateway: &str| {
        let gateway: IpAddr = gateway.parse().unwrap();
        Request::add_route(&Route::new(destination.parse().unwrap(), INDEX).via(gateway).on_link())
    };
    vec![
        Request::change_link(INDEX, &LinkChange::new().up()),
        Request::add_address(INDEX, v4),
        Request::add_address(INDEX, v6),
        route("0.0.0.0/0", "10.9.255.254"),
        route("::/0", "fd00:9::1"),
    ]
}
