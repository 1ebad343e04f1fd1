use std::net::Ipv4Addr;

use super::*;

pub(in crate::check) fn network(text: &str) -> Network {
    toml::from_str(text).unwrap()
}

pub(in crate::check) fn assert_problem(text: &str, expected: &str) {
    let problems = check_network(&network(text));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains(expected), "{problems:?} does not tell {expected:?}");
}

#[test]
fn namespaces_are_named_exactly() {
    let named = "name = \"a\"\nnamespaces = [\"prod\", \"team-a\"]";
    assert_eq!(check_network(&network(named)), [""; 0]);
    for wrong in ["team-*", "", "Prod"] {
        let text = format!("name = \"a\"\nnamespaces = [{wrong:?}]");
        assert_problem(&text, &format!("namespaces holds {wrong:?}"));
    }
}

#[test]
fn an_interface_prefix_leaves_room_for_two_digits() {
    let of = |prefix: &str| format!("name = \"a\"\ninterface_prefix = {prefix:?}");
    for good in ["", "data", "thirteen-byte"] {
        assert_eq!(check_network(&network(&of(good))), [""; 0]);
    }
    for wrong in ["fourteen-bytes", "a/", "a b", "net%d"] {
        assert_problem(&of(wrong), "interface_prefix");
    }
}

#[test]
fn a_full_network_is_fine() {
    let text = r#"
        name = "blue-1"
        vlan = 4094
        mtu = 9000
        bandwidth = { ingress_rate = 1000000, ingress_burst = 80000 }
        [[subnets]]
        cidr = "10.1.0.0/16"
        gateway = "10.1.0.1"
        ranges = [{ start = "10.1.1.0", end = "10.1.1.255" }, { start = "10.1.3.0", end = "10.1.3.9" }]
        exclude = ["10.1.1.5/32", "10.1.3.0/30"]
        [[subnets]]
        cidr = "fd00:1::/64"
        gateway = "fd00:1::1"
        [[routes]]
        destination = "10.9.0.0/16"
        gateway = "10.1.0.2"
        [[rules]]
        source = "10.1.0.0/16"
        table = 100
        [dns]
        nameservers = ["10.1.0.1"]
        search = ["svc.example"]
    "#;
    assert_eq!(check_network(&network(text)), [""; 0]);
}

#[test]
fn first_hop_may_be_link_local() {
    let of = |rest: &str| format!("name = \"a\"\n{rest}");
    let link_local = "subnets = [{ cidr = \"10.1.0.0/16\", gateway = \"169.254.77.1\" }, \
                      { cidr = \"fd00:1::/64\", gateway = \"fe80::1\" }]";
    let first_hop = of(&format!("first_hop = true\n{link_local}"));
    assert_eq!(check_network(&network(&first_hop)), [""; 0]);
    assert_problem(&of(link_local), "gateway 169.254.77.1 is outside");
    assert_problem(
        &of(&format!("first_hop = true\ngateway_mode = \"dpu\"\n{link_local}")),
        "gateway 169.254.77.1 is outside",
    );
    let bare = "first_hop = true\nsubnets = [{ cidr = \"10.1.0.0/16\" }]";
    assert_problem(&of(bare), "first_hop = true");
    let subnet = "first_hop = true\nsubnets = [{ cidr = \"10.1.0.0/16\", gateway = \"10.1.0.1\" }]";
    let by = |hop: &str| {
        of(&format!(
            "{subnet}\nroutes = [{{ destination = \"10.9.0.0/16\", gateway = \"{hop}\" }}]"
        ))
    };
    assert_eq!(check_network(&network(&by("10.1.0.1"))), [""; 0]);
    assert_problem(&by("10.1.0.2"), "gateway 10.1.0.2 is not");
}

#[test]
fn nat_and_reaches_need_a_dpu_gateway() {
    let subnet = "subnets = [{ cidr = \"10.1.0.0/16\", gateway = \"10.1.0.1\" }]";
    let dpu = |rest: &str| format!("name = \"a\"\ngateway_mode = \"dpu\"\n{rest}\n{subnet}");
    assert_eq!(check_network(&network(&dpu("nat = true\nreaches = [\"b\"]"))), [""; 0]);
    assert_problem(&dpu("reaches = [\"a\"]"), "reaches");
    let none = "name = \"a\"\ngateway_mode = \"dpu\"";
    assert_problem(none, "gateway_mode = \"dpu\" needs");
    assert_problem("name = \"a\"\nnat = true", "nat is ");
    assert_problem("name = \"a\"\nreaches = [\"b\"]", "reaches is ");
    let first_hop = "subnets = [{ cidr = \"fd00:1::/64\", gateway = \"fe80::1\" }]";
    assert_eq!(check_network(&network(&format!("name = \"a\"\n{first_hop}"))), [""; 0]);
}

#[test]
fn reaches_names_networks_with_a_dpu_gateway() {
    let one = |name: &str, rest: &str| network(&format!("name = {name:?}\n{rest}"));
    let dpu = "gateway_mode = \"dpu\"";
    let blue = one("blue", &format!("{dpu}\nreaches = [\"green\", \"red\", \"none\"]"));
    let reported = check_reaches([&blue, &one("green", dpu), &one("red", "")], |_, _| true);
    let [unknown, not_led] = &reported[..] else { panic!("{reported:?}") };
    let not_led_by_us = |it: &str| it.contains("gateway_mode");
    assert!(unknown.starts_with("network \"blue\": reaches holds \"none\""), "{unknown}");
    assert!(!not_led_by_us(unknown), "{unknown}");
    assert!(not_led.starts_with("network \"blue\": reaches holds \"red\""), "{not_led}");
    assert!(not_led_by_us(not_led), "{not_led}");
}

#[test]
fn names_are_checked() {
    for name in ["", "Blue", "-a", "a-", "a_b", "a b", "é", &"a".repeat(64)] {
        assert_problem(&format!("name = {name:?}"), "name must");
    }
}

#[test]
fn link_settings_are_checked() {
    assert_problem("name = \"a\"\nvlan = 0", "vlan 0 must be 1 to 4094");
    assert_problem("name = \"a\"\nvlan = 4095", "vlan 4095 must be 1 to 4094");
    assert_problem("name = \"a\"\nmtu = 1279", "mtu 1279 must be 1280 to 9216");
    assert_problem("name = \"a\"\nmtu = 9217", "mtu 9217 must be 1280 to 9216");
}

#[test]
fn subnet_without_free_addresses_is_refused() {
    let subnets = "name = 'a'\nsubnets = [{ cidr = '10.1.0.0/30', gateway = '10.1.0.1' }]";
    assert_eq!(check_network(&network(subnets)), [""; 0]);
    let route = "routes = [{ destination = '10.9.0.0/16', gateway = '10.1.0.2' }]";
    let expected = r#"network "a": subnet 10.1.0.0/30 "#;
    let reported = check_network(&network(&format!("{subnets}\n{route}")));
    assert!(reported.len() == 1 && reported[0].starts_with(expected), "{reported:?}");
}

#[test]
fn subnets_are_checked() {
    let cases = [
        (r#"cidr = "10.1.0.5/16""#, "has host bits set: write 10.1.0.0/16"),
        (r#"cidr = "fd00::1/64""#, "has host bits set: write fd00::/64"),
        (r#"cidr = "224.1.0.0/16""#, "loopback, multicast, broadcast or unspecified"),
        (r#"cidr = "255.255.255.255/32""#, "loopback, multicast, broadcast or unspecified"),
        (r#"cidr = "255.255.255.254/31""#, "loopback, multicast, broadcast or unspecified"),
        (r#"cidr = "fe80::/64""#, "fe80::/10 is link-local"),
        (r#"cidr = "fe80:0:0:7::/64""#, "fe80::/10 is link-local"),
        (r#"cidr = "fe00::/8""#, "fe80::/10 is link-local"),
        (r#"cidr = "0.0.0.0/0""#, "loopback, multicast, broadcast or unspecified"),
        (r#"cidr = "::ffff:10.1.0.0/112""#, "loopback, multicast, broadcast or unspecified"),
        (r#"cidr = "10.1.0.0/16", gateway = "10.2.0.1""#, "gateway 10.2.0.1 is outside"),
        (r#"cidr = "10.1.0.0/16", gateway = "fd00::1""#, "gateway fd00::1 is outside"),
        (r#"cidr = "10.1.0.0/16", gateway = "10.1.0.0""#, "is the network's or the broadcast"),
        (
            r#"cidr = "10.1.0.0/16", ranges = [{ start = "10.1.0.9", end = "10.1.0.8" }]"#,
            "runs backwards",
        ),
        (
            r#"cidr = "10.1.0.0/16", ranges = [{ start = "10.0.0.9", end = "10.1.0.8" }]"#,
            "10.0.0.9 is outside the subnet",
        ),
        (
            r#"cidr = "10.1.0.0/16", ranges = [{ start = "10.1.0.5", end = "10.1.0.8" }, { start = "10.1.0.1", end = "10.1.0.5" }]"#,
            "overlap: join them",
        ),
        (r#"cidr = "10.1.0.0/16", exclude = ["10.2.0.0/30"]"#, "exclude 10.2.0.0/30 is outside"),
        (r#"cidr = "10.1.0.0/16", exclude = ["10.1.0.1/30"]"#, "10.1.0.1/30 has host bits"),
    ];
    for (subnet, expected) in cases {
        assert_problem(&format!("name = \"a\"\nsubnets = [{{ {subnet} }}]"), expected);
    }
}

#[test]
fn lists_of_a_subnet_are_bounded() {
    let of = |number: u32| {
        let addresses = (1..=number).map(|last| Ipv4Addr::from_bits(0x0a01_0000 + 2 * last));
        let (exclude, ranges): (Vec<_>, Vec<_>) = addresses
            .map(|it| (format!("'{it}/32'"), format!("{{ start = '{it}', end = '{it}' }}")))
            .unzip();
        let (exclude, ranges) = (exclude.join(", "), ranges.join(", "));
        let cidr = "cidr = '10.1.0.0/16'";
        [format!("exclude = [{exclude}]"), format!("ranges = [{ranges}]")]
            .map(|list| format!("name = 'a'\nsubnets = [{{ {cidr}, {list} }}]"))
    };
    of(256).iter().for_each(|text| assert_eq!(check_network(&network(text)), [""; 0]));
    let [exclude, ranges] = of(257);
    assert_problem(&exclude, "exclude holds 257 entries; 256 are the most");
    assert_problem(&ranges, "ranges holds 257 entries; 256 are the most");
}

#[test]
fn rates_and_resolver_words_are_checked() {
    let cases = [
        ("bandwidth = { egress_burst = 8 }", "egress_burst needs bandwidth.egress_rate"),
        ("bandwidth = { ingress_rate = 7999 }", "must be at least 8000"),
        ("bandwidth = { egress_share = 7999 }", "egress_share 7999 must be at least 8000"),
        (
            "bandwidth = { egress_rate = 8000, egress_share = 8001 }",
            "egress_share 8001 must be at most bandwidth.egress_rate 8000",
        ),
        ("total_egress_rate = 7999", "total_egress_rate 7999 must be at least 8000"),
        (
            "total_egress_rate = 8000\nbandwidth = { egress_share = 8001 }",
            "egress_share 8001 must be at most total_egress_rate 8000",
        ),
        ("bandwidth = { ingress_rate = 8000, ingress_burst = 34359738361 }", "at most"),
        ("dns = { search = [\"a b\"] }", "\"a b\" must be one word"),
    ];
    for (lines, expected) in cases {
        assert_problem(&format!("name = \"a\"\n{lines}"), expected);
    }
}

#[test]
fn networks_are_checked_against_each_other() {
    let with = |name: &str, cidr: &str| {
        network(&format!("name = {name:?}\nsubnets = [{{ cidr = {cidr:?} }}]"))
    };
    let inner = with("b", "10.1.2.0/24");
    let networks = [with("a", "10.1.0.0/16"), with("c", "10.2.0.0/16"), inner.clone()];
    let problems = check_networks(&networks, &[]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("10.1.2.0/24 of network \"b\" overlaps 10.1.0.0/16 of"));

    let problems = check_networks(&[network("name = \"a\""), network("name = \"a\"")], &[]);
    assert!(problems.len() == 1 && problems[0].contains("named \"a\""), "{problems:?}");

    let default = |name: &str| network(&format!("name = {name:?}\ndefault = true"));
    let problems = check_networks(&[default("a"), default("b")], &[]);
    assert!(problems[0].contains("default = true"), "{problems:?}");
}

#[test]
fn subnets_of_one_network_are_apart() {
    let text = "name = \"a\"\nsubnets = [{ cidr = \"10.0.0.0/8\" }, { cidr = \"10.0.0.0/8\" }]";
    assert_eq!(check_networks(&[network(text)], &[]).len(), 1);
}

fn in_vlan(name: &str, cidr: &str, rest: &str) -> Network {
    network(&format!("name = {name:?}\n{rest}\nsubnets = [{{ cidr = {cidr:?} }}]"))
}

#[test]
fn subnets_overlap_within_a_layer_2_domain() {
    let are_apart = |one: &str, other: &str| {
        let networks = [in_vlan("a", "10.1.0.0/16", one), in_vlan("b", "10.1.2.0/24", other)];
        check_networks(&networks, &["br0".into(), "br1".into()]).is_empty()
    };
    assert!(are_apart("vlan = 7", "vlan = 8") && are_apart("", "vlan = 8"));
    assert!(are_apart("vlan = 7", "vlan = 7\nbridge = 'br1'"));
    assert!(!are_apart("vlan = 7", "vlan = 7") && !are_apart("", "bridge = 'br0'"));
    assert!(!are_apart("vlan = 7\ntrunk = [8]", "vlan = 8"));
    assert!(!are_apart("vlan = 7\ntrunk = [9]", "vlan = 8\ntrunk = [9]"));
}

#[test]
fn dpu_routed_subnet_is_in_one_domain() {
    let dpu = |name, cidr, vlan: u16| {
        in_vlan(name, cidr, &format!("vlan = {vlan}\ngateway_mode = 'dpu'"))
    };
    let plain = |name, cidr, vlan: u16| in_vlan(name, cidr, &format!("vlan = {vlan}"));
    let reported = |networks: &[Network]| check_routed_subnets(networks, &[]);
    let (wide, narrow) = ("10.0.0.0/8", "10.1.0.0/16");
    for networks in [
        [dpu("a", wide, 7), plain("b", narrow, 8)],
        [plain("a", wide, 7), dpu("b", narrow, 8)],
        [dpu("a", narrow, 7), dpu("b", narrow, 8)],
        [plain("a", narrow, 7), dpu("b", narrow, 8)],
    ] {
        let reported = reported(&networks);
        let named = ["\"a\" in VLAN 7", "\"b\" in VLAN 8"];
        assert!(
            reported.len() == 1 && named.iter().all(|it| reported[0].contains(it)),
            "{reported:?}"
        );
    }
    let apart = [plain("a", narrow, 7), plain("b", narrow, 8), dpu("c", "10.2.0.0/16", 9)];
    assert_eq!(reported(&apart), [""; 0]);
    let hidden = [plain("a", wide, 7), plain("b", "10.1.0.0/16", 8), dpu("c", "10.1.2.0/24", 9)];
    assert_eq!(reported(&hidden).len(), 1);
}
