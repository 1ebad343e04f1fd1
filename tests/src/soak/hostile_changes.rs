//! Changes by a pod with `CAP_NET_ADMIN` to its own interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use crate::{command::run, rng::Rng};

/// Shell commands. `$link` is the interface, `$elsewhere` another namespace, and `$xdp` an object file with an XDP
/// program. Commands that rename or delete the link come last. The alias stands for a real card's PCI address, which no
/// pod can change.
const HOSTILE_CHANGES: [&str; 50] = [
    "ip link add link $link up type macvlan mode bridge",
    "ip link add link $link up type macvlan mode private",
    "ip link add link $link up type macvlan mode passthru",
    "ip link add link $link up type macvtap mode bridge",
    "ip link add link $link up type macvtap mode passthru",
    "ip link add link $link up type ipvlan mode l2",
    "ip link add link $link up type vlan id 7",
    "ip link add link $link netns $elsewhere up type macvlan mode bridge",
    "ip link add link $link netns $elsewhere up type macvlan mode passthru",
    "ip link add link $link netns $elsewhere up type macvlan mode passthru nopromisc",
    "ip link add link $link netns $elsewhere up type macvlan mode source",
    "ip link add link $link netns $elsewhere up type macvtap mode bridge",
    "ip link add link $link netns $elsewhere up type ipvlan mode l2",
    "ip link add link $link netns $elsewhere up type vlan id 7",
    "ip link set $link arp off",
    "ip link set $link multicast off",
    "ip link set $link promisc on",
    "ip link set $link allmulticast on",
    "ip link set $link broadcast 02:00:00:00:00:01",
    "ip link set $link dynamic on",
    "ip link set $link mtu 1280",
    "ip link set $link mtu 9000",
    "ip link property add dev $link altname mine-$link",
    "ip link set $link txqueuelen 1",
    "ip link set $link group 7",
    "ip link set $link gso_max_size 4000 gso_max_segs 4",
    "ip link set $link gro_max_size 4000",
    "ip link set $link addrgenmode none",
    "ethtool -K $link tso off gso off gro on",
    "ethtool -K $link rx off tx off sg off",
    "ethtool -K $link txvlan off rxvlan off",
    "ethtool -L $link rx 2 tx 2",
    "echo 20000 >/sys/class/net/$link/gro_flush_timeout",
    "echo 2 >/sys/class/net/$link/napi_defer_hard_irqs",
    "ethtool -K $link gro on; echo 1 >/sys/class/net/$link/threaded",
    "echo 1 >/sys/class/net/$link/queues/rx-0/rps_cpus",
    "echo 64 >/sys/class/net/$link/queues/rx-0/rps_flow_cnt",
    "echo 1 >/sys/class/net/$link/queues/tx-0/xps_cpus",
    "tc qdisc replace dev $link root tbf rate 1mbit burst 2k latency 50ms",
    "tc qdisc replace dev $link root pfifo limit 1",
    "tc qdisc add dev $link clsact && tc filter add dev $link egress matchall action drop",
    "tc qdisc add dev $link clsact && tc filter add dev $link egress u32 match u32 0 0 flowid 1:1",
    "bridge fdb add 02:00:00:00:00:02 dev $link self",
    "ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:03 dev $link",
    "ip address flush dev $link",
    "ip address add 10.1.0.1/16 dev $link && ip route add 192.0.2.0/24 dev $link",
    "ip link set $link down; ip link set $link address 02:00:00:00:00:04",
    "ip link set $link xdpgeneric object $xdp section xdp",
    "ip link set $link down; ip link set $link name evil-$link up",
    "ip link delete $link",
];

/// A selection of changes, as bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostileChanges(u64);

impl HostileChanges {
    /// Selects up to four.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let count = 1 + rng.index(4);
        Self((0..count).fold(0, |drawn, _| drawn | 1 << rng.index(HOSTILE_CHANGES.len())))
    }

    fn chosen(self) -> impl Iterator<Item = &'static str> {
        let is_chosen = move |(number, _): &(usize, _)| self.0 >> number & 1 == 1;
        HOSTILE_CHANGES.into_iter().enumerate().filter(is_chosen).map(|(_, change)| change)
    }

    /// Runs them inside `pod`, and reports for each whether the kernel allowed it.
    pub(crate) fn play(self, pod: &str, scene: &Scene<'_>) -> BTreeMap<&'static str, bool> {
        let chosen: Vec<_> = self.chosen().collect();
        let mut script = String::new();
        for (number, change) in chosen.iter().enumerate() {
            script += &format!("{{ {change}; }} >&2 && echo {number}\n");
        }
        // Sysfs shows the namespace in which it is mounted.
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", pod, "sh", "-c", &script]);
        let Scene { link, elsewhere, xdp } = scene;
        let printed = run(inside.envs([("link", link), ("elsewhere", elsewhere), ("xdp", xdp)]));
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        let passed: BTreeSet<usize> =
            printed.lines().filter_map(|line| line.parse().ok()).collect();
        let reported = |(number, change)| (change, passed.contains(&number));
        chosen.into_iter().enumerate().map(reported).collect()
    }
}

/// Surroundings of the changes.
pub(crate) struct Scene<'a> {
    /// The pod's interface.
    pub(crate) link: &'a str,
    /// Another namespace.
    pub(crate) elsewhere: &'a str,
    /// An object file with an XDP program.
    pub(crate) xdp: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_drawn_by_some_seed() {
        let drawn = |seed| HostileChanges::draw(&mut Rng::new(seed)).chosen();
        let all: BTreeSet<_> = (0..1000).flat_map(drawn).collect();
        assert_eq!(all, BTreeSet::from(HOSTILE_CHANGES));
    }
}
