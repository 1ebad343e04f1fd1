//! What the DPU's kernel has, as text for a bug report.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use netlink::{BridgeVlan, Error, Link, Rtnl};

/// Most lines of each part: a thousand representors and what else a DPU has.
const MOST_LINES: usize = 4096;

/// Links with their masters, VLANs and addresses, and routes, one a line. Blocks on the kernel.
///
/// # Errors
/// When the kernel can't be asked.
pub(crate) fn text() -> Result<String, Error> {
    let mut rtnl = Rtnl::open()?;
    let links = rtnl.links()?;
    let vlans = vlans_by_port(&mut rtnl, &links)?;
    let names: HashMap<u32, &str> =
        links.iter().map(|link| (link.index, link.name.as_str())).collect();
    let mut text = String::new();
    let mut lines = Vec::new();
    for link in links.iter().take(MOST_LINES) {
        let addresses = rtnl.addresses(link.index)?;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        lines.push(link_line(link, &names, vlans.get(&link.index), &addresses.join(",")));
    }
    add_part(&mut text, "links", links.len(), lines);
    let routes = rtnl.routes()?;
    let line = |route: &netlink::Route| {
        let link = names.get(&route.output).copied().unwrap_or("-");
        format!("{route} dev {link}")
    };
    add_part(&mut text, "routes", routes.len(), routes.iter().take(MOST_LINES).map(line).collect());
    Ok(text)
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
        // Writing to a string can't fail.
        let _ = write!(line, " {what} {value:?}");
    }
    line
}

fn vlan(vlan: &BridgeVlan) -> String {
    let (pvid, untagged) = (if vlan.pvid { "p" } else { "" }, if vlan.untagged { "u" } else { "" });
    format!("{}{pvid}{untagged}", vlan.id)
}

fn add_part(text: &mut String, heading: &str, number: usize, lines: Vec<String>) {
    let left_out = number - lines.len();
    text.push_str(&format!("# {heading}: {number}\n"));
    lines.into_iter().for_each(|line| {
        text.push_str(&line);
        text.push('\n');
    });
    if left_out > 0 {
        text.push_str(&format!("# {left_out} more\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_shown_with_its_bridge_and_vlans() {
        let mut link = Link::default();
        (link.index, link.name, link.mtu, link.master) = (7, "pf0vf0".into(), 1500, Some(3));
        (link.is_up, link.is_running) = (true, false);
        let vlans = vec![BridgeVlan { id: 100, pvid: true, untagged: true }];
        let line = link_line(&link, &[(3, "br0")].into(), Some(&vlans), "10.0.0.1/24");
        let expected = "7 pf0vf0 kind - no-carrier mtu 1500 master \"br0\" vlans \"100pu\" addresses \"10.0.0.1/24\"";
        assert_eq!(line, expected);
    }

    #[test]
    fn lines_that_are_left_out_are_counted() {
        let mut text = String::new();
        add_part(&mut text, "links", 3, vec!["a".into()]);
        assert_eq!(text, "# links: 3\na\n# 2 more\n");
    }
}
