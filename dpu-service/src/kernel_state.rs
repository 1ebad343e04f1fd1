//! State of the DPU's kernel as text, for bug reports.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use bootstrap::Chain;
use netlink::{BridgeVlan, Error, Link, Rtnl, nftables::Nftables};

use drivers::programmer::Programmer;

/// Maximum lines of each part: enough for a thousand representors and the DPU's other links.
const MOST_LINES: usize = 4096;

/// Prefix of the names of this project's nftables tables.
const OUR_TABLES: &str = "dpu-offload";

/// Links with masters, VLANs and addresses, then routes, neighbours, nftables rules and flows, one a line. A part that
/// cannot be read contains the error. Blocks on the kernel.
pub(crate) fn text(programmer: &Programmer) -> String {
    [
        part("links", by_links(link_lines)),
        part("routes", by_links(route_lines)),
        part("neighbours", by_links(neighbour_lines)),
        part("nftables", Nftables::open().and_then(|mut nftables| nftables.rules(OUR_TABLES))),
        part("flows", programmer.flows()),
    ]
    .concat()
}

/// A heading with the number of lines, then the lines up to the maximum.
fn part<E: std::error::Error + 'static>(heading: &str, lines: Result<Vec<String>, E>) -> String {
    let lines = match lines {
        Ok(lines) => lines,
        Err(error) => return format!("# {heading}: unknown: {}\n", Chain(&error)),
    };
    let mut text = format!("# {heading}: {}\n", lines.len());
    for line in lines.iter().take(MOST_LINES) {
        text.push_str(line);
        text.push('\n');
    }
    if let Some(left_out @ 1..) = lines.len().checked_sub(MOST_LINES) {
        text.push_str(&format!("# {left_out} more\n"));
    }
    text
}

fn by_links(
    lines: impl FnOnce(&mut Rtnl, &[Link]) -> Result<Vec<String>, Error>,
) -> Result<Vec<String>, Error> {
    let mut rtnl = Rtnl::open()?;
    let links = rtnl.links()?;
    lines(&mut rtnl, &links)
}

fn link_lines(rtnl: &mut Rtnl, links: &[Link]) -> Result<Vec<String>, Error> {
    let vlans = vlans_by_port(rtnl, links)?;
    let names = names(links);
    let mut line = |link: &Link| {
        let addresses = rtnl.addresses(link.index)?;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        Ok(link_line(link, &names, vlans.get(&link.index), &addresses.join(",")))
    };
    links.iter().map(&mut line).collect()
}

fn route_lines(rtnl: &mut Rtnl, links: &[Link]) -> Result<Vec<String>, Error> {
    let names = names(links);
    let routes = rtnl.routes()?;
    Ok(routes.iter().map(|route| format!("{route} dev {}", name(&names, route.output))).collect())
}

fn neighbour_lines(rtnl: &mut Rtnl, links: &[Link]) -> Result<Vec<String>, Error> {
    let names = names(links);
    let entries = rtnl.neighbours()?;
    Ok(entries.iter().map(|entry| format!("{entry} dev {}", name(&names, entry.link))).collect())
}

fn names(links: &[Link]) -> HashMap<u32, &str> {
    links.iter().map(|link| (link.index, link.name.as_str())).collect()
}

fn name<'a>(names: &HashMap<u32, &'a str>, link: u32) -> &'a str {
    names.get(&link).copied().unwrap_or("-")
}

fn vlans_by_port(rtnl: &mut Rtnl, links: &[Link]) -> Result<BTreeMap<u32, Vec<BridgeVlan>>, Error> {
    let mut vlans = BTreeMap::new();
    for bridge in links.iter().filter(|link| link.bridge.is_some()) {
        vlans.extend(rtnl.bridge_vlans(bridge.index)?);
    }
    Ok(vlans)
}

fn link_line(
    link: &Link,
    names: &HashMap<u32, &str>,
    vlans: Option<&Vec<BridgeVlan>>,
    addresses: &str,
) -> String {
    let Link { index, name, mtu, .. } = link;
    let kind = link.kind.as_deref().unwrap_or("-");
    let flags = match (link.is_up, link.is_running) {
        (false, _) => "down",
        (true, false) => "no-carrier",
        (true, true) => "up",
    };
    let mut line = format!("{index} {name} kind {kind} {flags} mtu {mtu}");
    let mac = link.mac.map(|mac| mac.to_string());
    let master = link.master.map(|master| match names.get(&master) {
        Some(name) => (*name).to_owned(),
        None => master.to_string(),
    });
    let vlans = vlans.map(|vlans| vlans.iter().map(vlan).collect::<Vec<_>>().join(","));
    let addresses = (!addresses.is_empty()).then(|| addresses.to_owned());
    let parts = [
        ("mac", mac),
        ("master", master),
        ("vlans", vlans),
        ("addresses", addresses),
        ("port", link.phys_port_name.clone()),
        ("device", link.parent_device.clone()),
        ("alias", link.alias.clone()),
    ];
    for (what, value) in parts.into_iter().filter_map(|(what, value)| Some((what, value?))) {
        // Writing to a string cannot fail.
        let _ = write!(line, " {what} {value:?}");
    }
    line
}

fn vlan(vlan: &BridgeVlan) -> String {
    let (pvid, untagged) = (if vlan.pvid { "p" } else { "" }, if vlan.untagged { "u" } else { "" });
    format!("{}{pvid}{untagged}", vlan.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_line_has_bridge_and_vlans() {
        let mut link = Link::default();
        (link.index, link.name, link.mtu, link.master) = (7, "pf0vf0".into(), 1500, Some(3));
        (link.is_up, link.is_running) = (true, false);
        let vlans = vec![BridgeVlan { id: 100, pvid: true, untagged: true }];
        let line = link_line(&link, &[(3, "br0")].into(), Some(&vlans), "10.0.0.1/24");
        let expected = "7 pf0vf0 kind - no-carrier mtu 1500 master \"br0\" vlans \"100pu\" addresses \"10.0.0.1/24\"";
        assert_eq!(line, expected);
    }

    #[test]
    fn lines_beyond_the_bound_are_counted() {
        let lines = |number| Ok::<_, Error>(vec!["a".to_owned(); number]);
        assert_eq!(part("links", lines(2)), "# links: 2\na\na\n");
        let cut = part("flows", lines(MOST_LINES + 3));
        assert!(cut.starts_with("# flows: 4099\n") && cut.ends_with("a\n# 3 more\n"));
        assert_eq!(cut.lines().count(), MOST_LINES + 2);
    }
}
