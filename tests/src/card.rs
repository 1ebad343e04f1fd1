//! The software card between a host netns and a DPU netns, and how its VFs look when nobody has them.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::Value;

use crate::{Netns, Program, wait_for};

/// The card, plugged in.
#[derive(Debug)]
pub struct Card {
    /// The process that is the card.
    pub program: Program,
    /// The host's root namespace.
    pub host: Netns,
    /// The DPU's namespace.
    pub dpu: Netns,
    /// VFs by PCI address, as they were after plugging.
    clean: BTreeMap<String, HostEnd>,
    pfs: u32,
    vfs: u32,
}

/// A VF's netdev, as `ip -j link` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEnd {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu: u64,
    /// Whether it is up.
    pub up: bool,
    /// Its alternative names.
    pub altnames: Vec<String>,
}

impl Card {
    /// Plugs a card of `pfs` physical functions with `vfs` VFs each, in new namespaces.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn plug(pfs: u32, vfs: u32, folder: &Path) -> Self {
        let (host, dpu) = (Netns::new("host"), Netns::new("dpu"));
        for netns in [&host, &dpu] {
            netns.ip(&["link", "set", "lo", "up"]);
        }
        let program = start(&host, &dpu, pfs, vfs, folder);
        let mut card = Self { program, host, dpu, clean: BTreeMap::new(), pfs, vfs };
        card.clean = card.wait_for_ends();
        card
    }

    /// Pulls the card out and plugs it in again: a reset, in which all its netdevs die.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn reset(&mut self, folder: &Path) {
        self.program.stop();
        self.program = start(&self.host, &self.dpu, self.pfs, self.vfs, folder);
    }

    /// How each VF looks while nobody has it, by PCI address.
    #[must_use]
    pub fn clean(&self) -> &BTreeMap<String, HostEnd> {
        &self.clean
    }

    /// The VFs' netdevs that are in `netns` now, by PCI address.
    #[must_use]
    pub fn ends_in(netns: &Netns) -> BTreeMap<String, HostEnd> {
        netns.json("ip", &["-d", "link", "show"]).iter().filter_map(host_end).collect()
    }

    fn wait_for_ends(&self) -> BTreeMap<String, HostEnd> {
        let count = (self.pfs * self.vfs) as usize;
        wait_for("the card's VFs and management link", Duration::from_secs(60), || {
            let ends = Self::ends_in(&self.host);
            (ends.len() == count && self.host.pings("192.168.100.2")).then_some(ends)
        })
    }
}

fn start(host: &Netns, dpu: &Netns, pfs: u32, vfs: u32, folder: &Path) -> Program {
    let (pfs, vfs) = (pfs.to_string(), vfs.to_string());
    let arguments = [
        "plug",
        "--host-netns",
        host.name(),
        "--dpu-netns",
        dpu.name(),
        "--pfs",
        &pfs,
        "--vfs",
        &vfs,
    ];
    Program::start("virtual-nic", dpu, folder, arguments, &[])
}

/// A link's alias is `virtual-nic <pci> <vf>` on the host's side of the card.
pub(crate) fn host_end(link: &Value) -> Option<(String, HostEnd)> {
    let mut alias = link["ifalias"].as_str()?.split(' ');
    let (card, pci) = (alias.next()?, alias.next()?);
    if card != "virtual-nic" || !pci.contains(':') {
        return None;
    }
    let altnames = link["altnames"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    let end = HostEnd {
        name: link["ifname"].as_str()?.to_owned(),
        mac: link["address"].as_str()?.to_owned(),
        mtu: link["mtu"].as_u64()?,
        up: link["flags"].as_array()?.iter().any(|flag| flag == "UP"),
        altnames: altnames.unwrap_or_default(),
    };
    Some((pci.to_owned(), end))
}
