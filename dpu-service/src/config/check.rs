//! Checks of the file as a whole.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use mtls::{Identity, Role};
use vf_alloc::{PfId, PoolSpec, Selector};

use super::{Config, Host};
use model::check::{
    check_bridge, check_named_networks, check_network, check_networks, check_reaches,
    check_routed_subnets, check_without_eswitch, is_label,
};

use drivers::settings::{self, EswitchDriver, FabricDriver};
use model::{Network, duplicates};

/// All problems of a configuration: one sentence each, with key, value and way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl Problems {
    /// One line for each problem, with the file's path.
    pub(super) fn with_path(&self, path: &Path) -> String {
        let line = |problem: &String| format!("{}: {problem}", path.display());
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Config {
    /// Checks values, after the file's form.
    pub fn check(&self) -> Result<(), Problems> {
        let mut problems = Vec::new();
        if !self.state_dir.is_absolute() {
            let path = &self.state_dir;
            problems
                .push(format!("state_dir = {path:?} must be an absolute path, beginning with /"));
        }
        problems.extend(self.check_addresses());
        problems.extend(self.log.check().err().map(|error| error.to_string()));
        problems.extend(self.tracing.problems());
        problems.extend(self.limits.check("limits"));
        problems.extend(self.allocation.check("allocation"));
        problems.extend(settings::check(&self.eswitch, &self.fabric));
        problems.extend(self.gateway.check(&self.fabric));
        problems.extend(self.check_hosts());
        problems.extend(self.check_pools());
        problems.extend(self.networks.iter().flat_map(check_network));
        let bridges = self.fabric.bridge_names();
        problems.extend(check_networks(&self.networks, &bridges));
        problems.extend(check_routed_subnets(&self.networks, &bridges));
        problems.extend(check_reaches(&self.networks, |_, _| true));
        problems.extend(check_named_networks(&self.networks, |_, _| true));
        for network in &self.networks {
            problems.extend(check_bridge(network, &bridges));
            problems.extend(self.gateway.check_network(network, self.fabric.driver));
            problems.extend(check_rules_on(network, self.fabric.driver));
            if self.eswitch.driver == EswitchDriver::None {
                problems.extend(check_without_eswitch(network));
            }
        }
        problems.extend(self.check_pools_of_networks());
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
    }

    fn check_addresses(&self) -> Option<String> {
        let (api, metrics) = (self.listen, self.metrics.listen?);
        overlap(api, metrics).then(|| {
            format!(
                "listen = \"{api}\" and metrics.listen = \"{metrics}\" are one address: give metrics \
                 another port"
            )
        })
    }

    fn check_hosts(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.hosts.is_empty() {
            problems.push(
                "there is no [[host]]: name each host that the card is plugged into, with its PFs"
                    .into(),
            );
        }
        let names = || self.hosts.iter().map(|host| host.name.as_str());
        problems.extend(names().filter_map(|name| {
            let refused = Identity::new(&self.tls.trust_domain, Role::Host, name).err()?;
            Some(format!("host {name:?}: {refused}"))
        }));
        problems.extend(duplicates(names()).map(|name| {
            format!("two hosts are named {name:?}: name all PFs of a host in one [[host]]")
        }));
        let without = self.hosts.iter().filter(|host| host.pfs.is_empty());
        problems.extend(
            without.map(|host| format!("host {:?}: pfs is empty: name its PFs", host.name)),
        );
        problems.extend(self.check_pf_owners());
        problems.extend(self.hosts.iter().flat_map(check_vfs));
        problems.extend(self.hosts.iter().flat_map(check_networks_of));
        problems
    }

    fn check_pf_owners(&self) -> Vec<String> {
        let mut owners: BTreeMap<PfId, &str> = BTreeMap::new();
        let mut problems = Vec::new();
        for host in &self.hosts {
            for pf in &host.pfs {
                match owners.insert(*pf, &host.name) {
                    Some(other) if other == host.name => {
                        problems.push(format!("host {:?}: pfs holds {pf} twice", host.name));
                    }
                    Some(other) => problems.push(format!(
                        "{pf} is in the pfs of host {other:?} and of host {:?}: a PF belongs to one",
                        host.name
                    )),
                    None => {}
                }
            }
        }
        problems
    }

    fn check_pools(&self) -> Vec<String> {
        let names = || self.pools.iter().map(|pool| pool.name.as_str());
        let mut problems: Vec<String> = names()
            .filter(|name| !is_label(name))
            .map(|name| {
                format!(
                    "pool {name:?}: its name must be 1 to 63 characters of a-z, 0-9 and -, \
                     beginning and ending with a letter or digit"
                )
            })
            .collect();
        problems.extend(
            duplicates(names()).map(|name| format!("two pools are named {name:?}: rename one")),
        );
        problems.extend(self.pools.iter().flat_map(|pool| self.check_selection(pool)));
        problems
    }

    fn check_selection(&self, pool: &PoolSpec) -> Vec<String> {
        let mut problems = Vec::new();
        if pool.select.is_empty() {
            problems.push("select is empty: name VFs, such as \"p0#0-63\"".into());
        }
        for selector in &pool.select {
            let Selector::Functions { pf, last, .. } = selector else { continue };
            // A PF of no host is reported, and not refused: its host may have been removed to cut it off.
            if !(*last <= HIGHEST_VF || *last == u16::MAX) {
                problems.push(format!(
                    "select holds {selector}: a PF has VFs 0 to {HIGHEST_VF} at most; write \"{pf}\" \
                     for all that it has"
                ));
            }
        }
        problems.into_iter().map(|problem| format!("pool {:?}: {problem}", pool.name)).collect()
    }

    fn check_pools_of_networks(&self) -> Vec<String> {
        let known: Vec<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        let unknown = self.networks.iter().filter(|network| !known.contains(&&*network.pool));
        unknown
            .map(|network| {
                format!(
                    "network {:?}: there is no pool {:?}: {}",
                    network.name,
                    network.pool,
                    way_to_a_pool(&network.pool, &known)
                )
            })
            .collect()
    }
}

/// Checks the wanted numbers of VFs of a host's PFs.
fn check_vfs(host: &Host) -> Vec<String> {
    let mut problems = Vec::new();
    for (pf, count) in &host.vfs {
        if !host.pfs.contains(pf) {
            problems.push(format!("vfs names {pf}, which is not in its pfs"));
        }
        if *count > u32::from(HIGHEST_VF) + 1 {
            let most = HIGHEST_VF + 1;
            problems.push(format!("vfs wants {count} VFs of {pf}: it must be 0 to {most}"));
        }
    }
    problems.into_iter().map(|problem| format!("host {:?}: {problem}", host.name)).collect()
}

/// Checks only the form of the names: the host's networks may be created later.
fn check_networks_of(host: &Host) -> impl Iterator<Item = String> {
    let wrong = host.networks.iter().filter(|network| !is_label(network));
    wrong.map(|network| {
        format!("host {:?}: networks holds {network:?}, which can't name a network", host.name)
    })
}

/// Whether the second of two sockets could not listen. A socket on all IPv6 addresses also takes IPv4.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |all: IpAddr, some: IpAddr| match all {
        IpAddr::V4(all) => all.is_unspecified() && some.is_ipv4(),
        IpAddr::V6(all) => all.is_unspecified(),
    };
    let (a, b) = (one.ip(), other.ip());
    one.port() == other.port() && one.port() != 0 && (a == b || covers(a, b) || covers(b, a))
}

/// More than any card has; SR-IOV would allow 65535 VFs.
const HIGHEST_VF: u16 = 4095;

fn way_to_a_pool(wanted: &str, known: &[&str]) -> String {
    match bootstrap::nearest(wanted, known) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("add a [[pool]] with name = {wanted:?}"),
    }
}

/// One sentence about why the fabric can't enforce the network's rules.
fn check_rules_on(network: &Network, fabric: FabricDriver) -> Option<String> {
    if network.allow.is_empty() {
        return None;
    }
    let lack = fabric.lacks("allow", FabricDriver::keeps_rules)?;
    Some(format!("network {:?}: {lack}", network.name))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Allocation, Limits},
        *,
    };

    const GOOD: &str = r#"
        [[host]]
        name = "node-1"
        pfs = ["p0"]
        [[pool]]
        name = "default"
        select = ["p0#0-63"]
        [[network]]
        name = "blue"
    "#;

    /// The file's problems. Adds a host if it has none.
    fn problems_of(text: &str) -> Vec<String> {
        let mut config: Config = toml::from_str(text).unwrap();
        if config.hosts.is_empty() {
            config.hosts = toml::from_str::<Config>(GOOD).unwrap().hosts;
        }
        config.check().err().map(|problems| problems.0).unwrap_or_default()
    }

    #[track_caller]
    fn assert_problem(text: &str, expected: &str) {
        let problems = problems_of(text);
        assert!(
            problems.len() == 1 && problems[0].contains(expected),
            "{problems:#?} is not one problem that tells {expected:?}"
        );
    }

    #[test]
    fn a_small_file_is_enough() {
        assert_eq!(problems_of(GOOD), [""; 0]);
        assert_eq!(problems_of(""), [""; 0]);
    }

    #[test]
    fn file_without_hosts_is_refused() {
        let config: Config = toml::from_str("").unwrap();
        let Err(Problems(problems)) = config.check() else { panic!("it passes") };
        assert!(problems.len() == 1 && problems[0].contains("no [[host]]"), "{problems:?}");
    }

    #[test]
    fn cards_belong_to_the_devlink_driver() {
        assert_problem("[eswitch]\ndevices = [\"pci/1\"]", "eswitch.driver = \"devlink\"");
        let devlink = |rest| format!("[eswitch]\ndriver = \"devlink\"\n{rest}");
        assert_problem(&devlink("mode = \"switchdev\""), "eswitch.mode ");
        assert_problem(&devlink("devices = [\"pci/1\", \"pci/1\"]"), "holds \"pci/1\" twice");
        assert_eq!(problems_of(&devlink("")), [""; 0]);
    }

    #[test]
    fn no_eswitch_and_no_fabric_go_together() {
        let (eswitch, fabric) = ("[eswitch]\ndriver = \"none\"", "[fabric]\ndriver = \"none\"");
        assert_eq!(problems_of(&format!("{eswitch}\n{fabric}")), [""; 0]);
        for alone in [eswitch, fabric] {
            assert_problem(alone, "go together");
        }
        for links in ["uplinks = [\"p0\"]", "keep = [\"pf0hpf\"]"] {
            let text = format!("{eswitch}\n{fabric}\n{links}");
            assert_problem(&text, "fabric.uplinks and fabric.keep");
            assert_problem(&text, "fabric.driver = \"bridge\"");
        }
    }

    #[test]
    fn bridges_are_distinct_and_networks_name_one() {
        let more = |tables: &str| format!("[fabric]\nuplinks = ['p0']\nbridges = [{tables}]");
        let storage = "{ name = 'br-storage', uplinks = ['p1'], keep = ['pf1hpf'] }";
        let blue = |bridge: &str| format!("{}\n{GOOD}\nbridge = {bridge:?}", more(storage));
        assert_eq!(problems_of(&blue("br-storage")), [""; 0]);
        assert_eq!(problems_of(&blue("br-offload")), [""; 0]);
        let reported = "no bridge \"br-storag\": did you mean \"br-storage\"?";
        assert_problem(&blue("br-storag"), reported);
        assert_problem(&blue("br-storag"), "network \"blue\": ");
        assert_problem(&blue("lan"), "fabric.bridges");
        let without = "[eswitch]\ndriver = 'none'\n[fabric]\ndriver = 'none'";
        let in_none = format!("{without}\n{GOOD}\nanti_spoofing = 'mac'\nbridge = 'lan'");
        assert_problem(&in_none, "fabric.driver = \"none\"");
        for (tables, reported) in [
            ("{ name = 'br-offload' }", "named \"br-offload\""),
            ("{ name = 'a/b' }", "fabric.bridges.name = \"a/b\""),
            ("{ name = 'b', uplinks = ['p0'] }", "link \"p0\""),
            ("{ name = 'b', keep = ['br-offload'] }", "\"br-offload\" is a bridge"),
            ("{ name = 'b', uplinks = ['x', 'x'] }", "fabric.bridges.uplinks holds \"x\" twice"),
        ] {
            assert_problem(&more(tables), reported);
        }
        let so_many = |count: usize| {
            let tables: Vec<_> = (0..count).map(|it| format!("{{ name = 'b{it}' }}")).collect();
            more(&tables.join(", "))
        };
        assert_eq!(problems_of(&so_many(16)), [""; 0]);
        assert_problem(&so_many(17), "fabric.bridges holds 17 bridges, and 16 are the most");
        let uplink = format!("{}\n[gateway]\nuplinks = ['p1']", more(storage));
        assert_problem(&uplink, "gateway.uplinks holds \"p1\"");
        let none =
            "[eswitch]\ndriver = 'none'\n[fabric]\ndriver = 'none'\nbridges = [{ name = 'b' }]";
        assert_problem(none, "fabric.bridges is for fabric.driver = \"bridge\" or \"ovs\"");
    }

    #[test]
    fn numbers_have_ranges() {
        let cases = [
            ("[limits]\nconnections = 0", "limits.connections = 0 must be 1 to 65536"),
            ("[limits]\nhandshakes = 70000", "limits.handshakes = 70000 must be 1 to 65536"),
            ("[limits]\nhandshake_timeout_s = 61", "handshake_timeout_s = 61 must be 1 to 60"),
            ("[limits]\nheartbeat_ms = 99", "heartbeat_ms = 99 must be 100 to 60000"),
            ("[limits]\nattachments = 0", "limits.attachments = 0 must be 1 to 65536"),
            ("[allocation]\nquarantine_after = 0", "quarantine_after = 0 must be 1 to 100"),
            ("[allocation]\naddress_cool_down_s = 86401", "= 86401 must be 0 to 86400"),
        ];
        for (text, expected) in cases {
            assert_problem(text, expected);
        }
    }

    #[test]
    fn every_limit_has_its_range_checked() {
        for (section, ranges) in [("limits", Limits::RANGES), ("allocation", Allocation::RANGES)] {
            assert!(!ranges.is_empty());
            for (key, range) in ranges {
                let (least, most) = (range.start(), range.end());
                for outside in least.checked_sub(1).into_iter().chain([most + 1]) {
                    let expected = format!("{section}.{key} = {outside} must be {least} to {most}");
                    assert_problem(&format!("{section}.{key} = {outside}"), &expected);
                }
                for within in [least, most] {
                    assert_eq!(problems_of(&format!("{section}.{key} = {within}")), [""; 0]);
                }
            }
        }
    }

    #[test]
    fn paths_are_absolute() {
        assert_problem("state_dir = \"state\"", "state_dir = \"state\" ");
    }

    #[test]
    fn metrics_have_an_address_of_their_own() {
        let with = |api: &str, metrics: &str| {
            format!("listen = \"{api}\"\n[metrics]\nlisten = \"{metrics}\"")
        };
        for (api, metrics) in [
            ("10.0.0.1:7443", "10.0.0.1:7443"),
            ("0.0.0.0:7443", "127.0.0.1:7443"),
            ("[::1]:7443", "[::]:7443"),
            ("[::]:7443", "127.0.0.1:7443"),
        ] {
            let expected = format!("listen = \"{api}\" and metrics.listen = \"{metrics}\"");
            assert_problem(&with(api, metrics), &expected);
        }
        for (api, metrics) in [
            ("0.0.0.0:7443", "127.0.0.1:9464"),
            ("10.0.0.1:7443", "127.0.0.1:7443"),
            ("0.0.0.0:7443", "[::1]:7443"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert_eq!(problems_of(&with(api, metrics)), [""; 0]);
        }
    }

    #[test]
    fn the_log_level_is_one() {
        assert_problem("[log]\nlevel = \"mtls=loud\"", "`log.level` holds \"mtls=loud\"");
    }

    #[test]
    fn the_fabric_is_made_of_interfaces() {
        assert_problem("[fabric]\nbridge = \"br/0\"", "fabric.bridge = \"br/0\" can't name");
        assert_problem("[fabric]\nuplinks = [\"\"]", "fabric.uplinks holds \"\"");
        assert_problem("[fabric]\nuplinks = [\"p0\", \"p0\"]", "fabric.uplinks holds \"p0\" twice");
        assert_problem("[fabric]\nuplinks = [\"br-offload\"]", "fabric.uplinks holds");
        assert_problem("[fabric]\nkeep = [\"a/b\"]", "fabric.keep holds \"a/b\"");
        let both = "[fabric]\nuplinks = [\"p0\"]\nkeep = [\"p0\"]";
        assert_problem(both, "fabric.keep and fabric.uplinks hold \"p0\"");
    }

    #[test]
    fn hosts_have_names_and_pfs_of_their_own() {
        let host = |name: &str, pfs: &str| format!("[[host]]\nname = {name:?}\npfs = [{pfs}]\n");
        let cases = [
            (host("Node 1", "'p0'"), "host \"Node 1\": \"Node 1\" is no name"),
            (host("a", ""), "host \"a\": pfs is empty"),
            (host("a", "'p0', 'p0'"), "host \"a\": pfs holds p0 twice"),
            (
                host("a", "'p0'") + &host("b", "'p1', 'p0'"),
                "p0 is in the pfs of host \"a\" and of host \"b\"",
            ),
            (host("a", "'p0'") + &host("a", "'p1'"), "two hosts are named \"a\""),
            (host("a", "'p0'") + "vfs = { p1 = 4 }", "vfs names p1, which is not in its pfs"),
            (host("a", "'p0'") + "networks = ['B_1']", "networks holds \"B_1\", which can't name"),
            (
                host("a", "'p0'") + "vfs = { p0 = 4097 }",
                "wants 4097 VFs of p0: it must be 0 to 4096",
            ),
        ];
        for (text, expected) in cases {
            assert_problem(&text, expected);
        }
    }

    #[test]
    fn pools_select_vfs_that_can_be() {
        let pool = |name: &str, select: &str| {
            format!(
                "[[host]]\nname = 'a'\npfs = ['p0']\n[[pool]]\nname = {name:?}\nselect = [{select}]\n"
            )
        };
        assert_eq!(problems_of(&pool("a", "'p0', {vendor = '15b3', device = '101e'}")), [""; 0]);
        let cases = [
            (pool("A", "'p0'"), "pool \"A\": its name must be"),
            (pool("a", ""), "pool \"a\": select is empty"),
            (pool("a", "'p0#0-4096'"), "select holds p0#0-4096: a PF has VFs 0 to 4095 at most"),
            (
                pool("a", "'p0'") + "[[pool]]\nname = 'a'\nselect = ['p0']",
                "two pools are named \"a\"",
            ),
        ];
        for (text, expected) in cases {
            assert_problem(&text, expected);
        }
    }

    #[test]
    fn networks_name_pools_that_there_are() {
        let text = format!("{GOOD}\npool = \"defualt\"");
        assert_problem(&text, "network \"blue\": ");
        assert_problem(&text, "pool \"defualt\": did you mean \"default\"?");
        let text = format!("{GOOD}\npool = \"gold\"");
        assert_problem(&text, "pool \"gold\": add a [[pool]]");
    }

    #[test]
    fn gateways_lead_where_there_is_something() {
        let subnet = "subnets = [{ cidr = \"10.1.0.0/16\", gateway = \"10.1.0.1\" }]";
        let dpu = |rest: &str| format!("{GOOD}\ngateway_mode = \"dpu\"\n{rest}\n{subnet}");
        assert_problem(&dpu("nat = true"), "network \"blue\": nat = true");
        assert_problem(&dpu("reaches = [\"red\"]"), "reaches holds \"red\"");
        let uplinks = "[gateway]\nuplinks = [\"p1\"]";
        assert_eq!(problems_of(&format!("{uplinks}\n{}", dpu("nat = true"))), [""; 0]);
        let both = "[fabric]\nuplinks = [\"p0\"]\n[gateway]\nuplinks = [\"p0\"]";
        assert_problem(both, "gateway.uplinks holds \"p0\"");
        assert_problem("[gateway]\nuplinks = [\"a/b\"]", "gateway.uplinks holds \"a/b\"");
        let twice = "[gateway]\nuplinks = [\"p1\", \"p1\"]";
        assert_problem(twice, "gateway.uplinks holds \"p1\" twice");
        let on_ovs = format!("[fabric]\ndriver = \"ovs\"\n{}", dpu(""));
        assert_problem(&on_ovs, "fabric.driver = \"bridge\"");
        let without = "[eswitch]\ndriver = \"none\"\n[fabric]\ndriver = \"none\"";
        let mac = dpu("anti_spoofing = \"mac\"");
        assert_problem(&format!("{without}\n{mac}"), "gateway_mode = \"dpu\" needs fabric.driver");
    }

    #[test]
    fn full_guard_is_refused_without_a_dpu() {
        let without = "[eswitch]\ndriver = \"none\"\n[fabric]\ndriver = \"none\"";
        let reported = "network \"blue\": anti_spoofing = \"full\" needs a DPU";
        assert_problem(&format!("{without}\n{GOOD}"), reported);
        let mac = format!("{without}\n{GOOD}\nanti_spoofing = \"mac\"");
        assert_eq!(problems_of(&mac), [""; 0]);
    }

    #[test]
    fn networks_are_checked() {
        assert_problem(&format!("{GOOD}\nvlan = 0"), "network \"blue\": vlan 0");
        let twice = format!("{GOOD}\n[[network]]\nname = \"blue\"");
        assert_problem(&twice, "named \"blue\"");
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let text = format!("{GOOD}\nvlan = 0\nmtu = 1\n[limits]\nconnections = 0");
        assert_eq!(problems_of(&text).len(), 3);
    }

    #[test]
    fn allow_is_refused_without_connection_tracking() {
        let blue = parsed("name = \"a\"\nallow = [{ deny_all = true }]");
        assert_eq!(check_rules_on(&blue, FabricDriver::Ovs), None);
        assert_eq!(check_rules_on(&parsed("name = \"a\""), FabricDriver::Bridge), None);
        for fabric in [FabricDriver::Bridge, FabricDriver::None] {
            let reported = check_rules_on(&blue, fabric).unwrap();
            let here = format!("{:?}", fabric.name());
            for word in ["network \"a\": allow", "fabric.driver = \"ovs\"", &here] {
                assert!(reported.contains(word), "{word}: {reported}");
            }
        }
    }

    fn parsed(text: &str) -> Network {
        toml::from_str(text).unwrap()
    }
}
