//! A DPU with a virtual card, its drivers, and pods with the VFs.
#![allow(dead_code, reason = "each test binary uses its part")]

#[allow(unreachable_pub, reason = "other crates show it")]
#[path = "../../../ovsdb/tests/support/open_vswitch.rs"]
mod open_vswitch;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use drivers::{
    driver::Refused,
    eswitch::{Eswitch, Representor, veth::VethEswitch},
    fabric::{
        BridgeSettings, Bridges, EgressLimit, Fabric,
        bridge::{BridgeAbilities, BridgeFabric},
        ovs::{OvsFabric, OvsSettings, Vswitch},
    },
    probe::KernelAbilities,
};
use model::PortSettings;
use netlink::{LinkChange, MacAddress, Request, VethEnd};
use nix::{
    ifaddrs::getifaddrs,
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt,
            socket, sockopt::ReceiveTimeout,
        },
        time::{TimeVal, TimeValLike},
    },
};
use serde_json::Value;
use vf_alloc::FunctionId;

pub(crate) use open_vswitch::OpenVswitch;

use crate::support::TestNetns;

pub(crate) const BRIDGE: &str = "br-offload";

/// A DPU with a virtual card. Its VFs are in pods' namespaces.
pub(crate) struct Dpu {
    pub(crate) netns: TestNetns,
    pub(crate) abilities: KernelAbilities,
    pub(crate) eswitch: VethEswitch,
    pub(crate) fabric: Arc<dyn Fabric>,
    /// Dropped after the fabric.
    pub(crate) vswitch: Option<OpenVswitch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Bridge,
    OpenVswitch,
}

impl On {
    /// All fabrics: pods must not notice a difference.
    pub(crate) const EVERY: [Self; 2] = [Self::Bridge, Self::OpenVswitch];
}

/// A pod with its VF as `eth0` and addresses of both families.
pub(crate) struct Pod {
    pub(crate) netns: TestNetns,
    pub(crate) settings: PortSettings,
}

impl Dpu {
    pub(crate) fn new() -> Self {
        Self::with_uplinks(&[])
    }

    pub(crate) fn with_uplinks(uplinks: &[&str]) -> Self {
        Self::on(On::Bridge, uplinks)
    }

    pub(crate) fn on(on: On, uplinks: &[&str]) -> Self {
        Self::with_links(on, uplinks, &[])
    }

    /// A DPU whose bridge has these additional links.
    pub(crate) fn with_links(on: On, uplinks: &[&str], kept: &[&str]) -> Self {
        let [uplinks, kept] =
            [uplinks, kept].map(|names| names.iter().map(ToString::to_string).collect());
        let bridge = BridgeSettings { name: BRIDGE.into(), uplinks, kept, ..Default::default() };
        Self::with_bridges(on, vec![bridge])
    }

    pub(crate) fn with_bridges(on: On, bridges: Vec<BridgeSettings>) -> Self {
        let start = (on == On::OpenVswitch).then_some(OpenVswitch::start_in as fn(&_) -> _);
        Self::start(bridges, start)
    }

    /// A DPU with an Open vSwitch on a small disk.
    pub(crate) fn on_small_disk() -> Self {
        let bridge = BridgeSettings { name: BRIDGE.into(), ..BridgeSettings::default() };
        Self::start(vec![bridge], Some(OpenVswitch::start_on_small_disk))
    }

    fn start(bridges: Vec<BridgeSettings>, vswitch: Option<fn(&Path) -> OpenVswitch>) -> Self {
        let netns = TestNetns::new();
        let abilities = KernelAbilities::probe().unwrap();
        let eswitch = netns.netns.run(|| VethEswitch::open(&abilities)).unwrap().unwrap();
        let vswitch = vswitch.map(|start| start(&netns.path()));
        let database = vswitch.as_ref().map(|vswitch| Arc::new(Vswitch::at(vswitch.socket())));
        let open = |bridge: BridgeSettings| -> (String, Arc<dyn Fabric>) {
            let name = bridge.name.clone();
            match &database {
                None => (name, Arc::new(open_bridge(&netns, &bridge, &abilities))),
                Some(database) => (name, Arc::new(open_ovs(&netns, bridge, database))),
            }
        };
        let fabric = Bridges::joined(bridges.into_iter().map(open).collect()).unwrap();
        Self { netns, abilities, eswitch, fabric, vswitch }
    }

    /// Waits until Open vSwitch has forgotten its decisions about earlier frames.
    pub(crate) fn forget_decisions(&self) {
        if let Some(vswitch) = &self.vswitch {
            vswitch.appctl(&["revalidator/wait"]);
        }
    }

    /// The switch of a DPU on [`On::OpenVswitch`].
    pub(crate) fn vswitch(&mut self) -> &mut OpenVswitch {
        self.vswitch.as_mut().unwrap()
    }

    /// Plugs VF `number` in, with its host end in the namespace of a new pod.
    pub(crate) fn plug(&self, number: u16) -> Pod {
        let pod = Pod { netns: TestNetns::new(), settings: settings_of(number) };
        self.plug_into(&pod);
        pod
    }

    pub(crate) fn plug_into(&self, pod: &Pod) {
        self.plug_as("eth0", &pod.netns, &pod.settings);
        pod.netns.run("ip link set eth0 up");
        let [v4, v6] = addresses_of(pod.settings.vf.vf);
        pod.netns.run(&format!("ip addr add {v4}/24 dev eth0"));
        pod.netns.run(&format!("ip addr add {v6}/64 dev eth0 nodad"));
    }

    /// Plugs a VF in, with its host end of that name in a namespace.
    pub(crate) fn plug_as(&self, vf: &str, host: &TestNetns, settings: &PortSettings) {
        let name = settings.vf.to_string();
        let mut rtnl = self.netns.rtnl();
        let vf = VethEnd::new(vf).netns(&host.netns).mac(settings.mac);
        rtnl.change(Request::add_veth(&VethEnd::new(&name), &vf)).unwrap();
        let index = rtnl.link_by_name(&name).unwrap().unwrap().index;
        let alias = format!("virtual-nic representor {name}");
        rtnl.change_link(index, &LinkChange::new().alias(alias)).unwrap();
    }

    /// Runs inside the namespace: a thread sees the sysctls of its own namespace.
    pub(crate) fn prepare(&self) -> Result<(), Refused> {
        self.netns.netns.run(|| self.fabric.prepare()).unwrap()
    }

    pub(crate) fn representor(&self, pod: &Pod) -> Representor {
        self.eswitch.representor(pod.settings.vf).unwrap().expect("no representor")
    }

    /// Programs as the programmer does. Inside, like [`Self::prepare`].
    pub(crate) fn program(&self, pod: &Pod) {
        let settings = &pod.settings;
        self.eswitch.set_mtu(&self.representor(pod), settings.mtu).unwrap();
        let port = self.representor(pod);
        self.fabric.join(&port, settings).unwrap();
        self.eswitch.set_rate(&port, settings).unwrap();
        self.fabric.set_guard(&port, settings).unwrap();
        if let Some(limit) = EgressLimit::of(&settings.bandwidth) {
            self.fabric.set_egress_limit(&port, &limit).unwrap();
        }
        self.netns.netns.run(|| self.eswitch.set_up(&port, true)).unwrap().unwrap();
    }

    /// The port's entry of `bridge link`.
    pub(crate) fn bridge_port(&self, name: &str) -> Value {
        self.netns.json(&format!("bridge -d -j link show dev {name}"))[0].clone()
    }

    /// MAC addresses in the FDB behind the port.
    pub(crate) fn fdb_macs(&self, name: &str) -> Vec<String> {
        let entries = self.netns.json(&format!("bridge -j fdb show dev {name}"));
        let entries = entries.as_array().unwrap().clone();
        let is_static = |entry: &&Value| entry["state"] == "static";
        entries
            .iter()
            .filter(is_static)
            .map(|entry| entry["mac"].as_str().unwrap().into())
            .collect()
    }
}

impl Pod {
    /// Waits until the address answers: a port forwards once the kernel has noticed its carrier.
    pub(crate) fn reaches(&self, address: &str) {
        test_clock::wait_until(&format!("ping {address}"), || self.pings(address));
    }

    /// Sends a tagged multicast frame whose payload begins with the mark.
    pub(crate) fn sends(&self, group: [u8; 6], tags: &[[u8; 4]], mark: [u8; 8]) {
        const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
        let mut frame = [group, self.settings.mac.0].concat();
        tags.iter().for_each(|tag| frame.extend(tag));
        frame.extend(EXPERIMENTAL);
        frame.extend(mark);
        frame.resize(60, 0);
        self.sends_frame(&frame);
    }

    /// Sends an unmodified frame.
    pub(crate) fn sends_frame(&self, frame: &[u8]) {
        let send = || {
            let eth0 = getifaddrs().unwrap().filter(|found| found.interface_name == "eth0");
            let link =
                eth0.filter_map(|found| Some(*found.address?.as_link_addr()?)).next().unwrap();
            let socket = open_raw_socket(SockProtocol::EthAll);
            sendto(socket.as_raw_fd(), frame, &link, MsgFlags::empty()).unwrap()
        };
        assert_eq!(self.netns.netns.run(send).unwrap(), frame.len());
    }

    pub(crate) fn pings(&self, address: &str) -> bool {
        pings(&self.netns, address)
    }
}

/// Whether an address answers a ping from that namespace.
pub(crate) fn pings(from: &TestNetns, address: &str) -> bool {
    let mut ping = Command::new("ping");
    ping.args(["-c", "1", "-W", "1", address]).stdout(Stdio::null());
    from.netns.run(|| ping.status().unwrap().success()).unwrap()
}

/// Port settings of the pod with that VF.
pub(crate) fn settings_of(vf: u16) -> PortSettings {
    let [high, low] = vf.to_be_bytes();
    PortSettings {
        vf: FunctionId::local(0, vf),
        mac: MacAddress([2, 0, 0, 0, high + 1, low]),
        addresses: addresses_of(vf).into(),
        mtu: 1500,
        ..PortSettings::default()
    }
}

/// Addresses of the pod with that VF.
pub(crate) fn addresses_of(vf: u16) -> [IpAddr; 2] {
    let [high, low] = (vf + 1).to_be_bytes();
    [Ipv4Addr::new(10, 9, high, low).into(), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, vf + 1).into()]
}

/// A capture of frames in a namespace.
pub(crate) struct Capture(OwnedFd);

impl Capture {
    pub(crate) fn of(netns: &TestNetns) -> Self {
        let socket = netns.netns.run(|| open_raw_socket(SockProtocol::EthAll)).unwrap();
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(1)).unwrap();
        Self(socket)
    }

    /// Marks captured until `last`, or until a second without any.
    pub(crate) fn marks_until(&self, last: [u8; 8]) -> Vec<[u8; 8]> {
        let mut marks = Vec::new();
        let mut frame = [0; 2048];
        while marks.last() != Some(&last) {
            let Ok(length) = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty()) else { break };
            let mut words = frame[..length].windows(8);
            let mark = words.find(|word| word.starts_with(b"mark"));
            marks.extend(mark.map(|mark| <[u8; 8]>::try_from(mark).unwrap()));
        }
        marks
    }
}

fn open_raw_socket(protocol: SockProtocol) -> OwnedFd {
    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap()
}

pub(crate) fn mark(number: usize) -> [u8; 8] {
    format!("mark{number:04}").into_bytes().try_into().unwrap()
}

/// Opens the fabric of a DPU as a restarted service does.
pub(crate) fn open_fabric(
    netns: &TestNetns,
    uplinks: &[&str],
    abilities: &KernelAbilities,
) -> BridgeFabric {
    let uplinks = uplinks.iter().map(ToString::to_string).collect();
    let bridge = BridgeSettings { name: BRIDGE.into(), uplinks, ..BridgeSettings::default() };
    open_bridge(netns, &bridge, abilities)
}

fn open_bridge(
    netns: &TestNetns,
    bridge: &BridgeSettings,
    abilities: &KernelAbilities,
) -> BridgeFabric {
    let of_bridges = BridgeAbilities::probe().unwrap();
    let open = || BridgeFabric::open(bridge, of_bridges, abilities);
    netns.netns.run(open).unwrap().unwrap()
}

fn open_ovs(netns: &TestNetns, bridge: BridgeSettings, database: &Arc<Vswitch>) -> OvsFabric {
    let datapath = serde_json::from_value(OpenVswitch::datapath().into()).unwrap();
    let settings = OvsSettings { bridge, datapath };
    netns.netns.run(|| OvsFabric::open(&settings, database)).unwrap().unwrap()
}

/// Runs `work` for all pods, each on its own thread.
pub(crate) fn at_once(pods: &[Pod], work: impl Fn(&Pod) + Sync) {
    std::thread::scope(|scope| {
        for pod in pods {
            scope.spawn(|| work(pod));
        }
    });
}

pub(crate) fn can(fabric: &dyn Fabric, name: &str) -> bool {
    fabric.capabilities().iter().any(|capability| capability.name == name && capability.available)
}
